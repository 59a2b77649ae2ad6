/* Scores of the search: https://www.sphinx-doc.org/en/master/usage/configuration.html#confval-html_search_scorer */
var Scorer = {
  // The API reference and the changelog have most words somewhere. Queries are often the text of an error.
  score: ([page, , , , score]) => {
    if (/^(api\/|changelog)/.test(page)) return score / 4;
    return page === "troubleshooting" ? score * 1.5 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

/* Ranking of the search: sum the scores of the words of a query, and weight rare words and those in titles more.
 *
 * Sphinx shows only pages that have all words of a query, and ranks them by their best word. Queries such as error
 * messages have words that no page has. Here a page needs more than half of the words, or as many as the best page.
 */
const searchPages = Search.performTermsSearch;

Search.performTermsSearch = (words, excludedWords) => {
  const matches = new Map(); // page -> its result, score and number of words
  for (const word of words) {
    const results = searchPages(new Set([word]), excludedWords);
    const rarity = Math.log(1 + Search._index.docnames.length / results.length);
    for (const result of results) {
      const [page, title, , , score] = result;
      const match = matches.get(page) ?? { result, score: 0, count: 0 };
      match.score += rarity * score * (title.toLowerCase().includes(word) ? 2 : 1);
      match.count += 1;
      matches.set(page, match);
    }
  }
  const most = Math.max(...[...matches.values()].map((match) => match.count));
  const least = Math.min(most, Math.floor(words.size / 2) + 1);
  return [...matches.values()]
    .filter((match) => match.count >= least)
    .map(({ result, score }) => result.with(4, score));
};

// The API reference and the changelog have most words somewhere. Queries are often the text of an error.
Scorer.score = ([page, , , , score]) => {
  if (/^(api\/|changelog)/.test(page)) return score / 2;
  return page === "troubleshooting" ? score * 1.5 : score;
};

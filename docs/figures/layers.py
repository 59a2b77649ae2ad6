"""The packages in the order of their imports, read from the tables that tests/test_layers.py enforces."""

import ast
from pathlib import Path

import lit_loader
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

TEST = Path(lit_loader.__file__).parents[1] / "tests" / "test_layers.py"
tables = {
    node.targets[0].id: ast.literal_eval(node.value)
    for node in ast.parse(TEST.read_text()).body
    if isinstance(node, ast.Assign)
    and node.targets[0].id in ("LAYERS", "CORE", "MAY_NAME")
}
layers = [
    [name for name in names if name != "__version__"] for names in tables["LAYERS"]
]

figure, axes = plt.subplots(figsize=(6.5, 5.4), layout="constrained")
for level, names in enumerate(layers):
    width = 9 / len(names)
    for column, name in enumerate(sorted(names)):
        color = "#dceaf5"
        if name in tables["CORE"]:
            color = "#fbe8c8"
        elif name in tables["MAY_NAME"]["lightning"]:
            color = "#e6dcef"
        style = "round,pad=0,rounding_size=0.12"
        corner = (column * width + 0.05, level)
        axes.add_patch(
            FancyBboxPatch(
                corner,
                width - 0.1,
                0.7,
                boxstyle=style,
                facecolor=color,
                edgecolor="0.4",
            )
        )
        axes.text(
            (column + 0.5) * width,
            level + 0.35,
            name,
            ha="center",
            va="center",
            fontsize=9,
        )
axes.annotate(
    "",
    (9.4, 0),
    (9.4, len(layers) - 0.3),
    arrowprops={"arrowstyle": "->", "color": "0.2"},
)
axes.text(9.55, len(layers) / 2, "imports", rotation=90, va="center")
axes.set(xlim=(-0.1, 10), ylim=(-0.2, len(layers)))
axes.axis("off")

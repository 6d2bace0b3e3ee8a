"""Write the blocks of docs/data.md and docs/methods.md that follow from the code.

python -m scripts.docs                       # after a change of the catalog or of a method's fields
python -m scripts.docs.ablations runs.db     # docs/ablations.md, from recorded runs
"""

from scripts.docs import data, methods
from scripts.docs.blocks import rewrite

for written in (data, methods):
    rewrite(written.PAGE, written.render)

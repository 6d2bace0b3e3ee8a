"""Write the parts of docs/ that follow from the code.

python -m tools.docs                          # after a change of the catalog, of fields, examples or layers
python -m tools.docs.ablations runs.db        # docs/ablations.md, from recorded runs
python -m tools.docs.generalisation runs.db   # the tables of docs/generalisation.md, likewise
python -m tools.docs.openness study.db        # docs/openness.md and its figures, likewise
"""

from tools.docs import data, examples, experiment, methods, rooms
from tools.docs.blocks import rewrite

rewrite(data.PAGE, data.render)
rewrite(experiment.PAGE, experiment.render)
for page in (examples.TUTORIAL, examples.OWN_METHOD):
    rewrite(page, examples.render)
for page in sorted(methods.PAGES.glob("*.md")):
    rewrite(page, methods.render)
rewrite(rooms.PICTURE, lambda _: rooms.picture())

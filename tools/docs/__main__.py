"""Write the parts of docs/ that follow from the code, and digests, findings and counts of printed values.

python -m tools.docs                          # after a change of what these parts follow from
python -m tools.docs.ablations runs.db        # docs/ablations.md, from recorded runs
python -m tools.docs.generalisation runs.db   # the tables of docs/generalisation.md, likewise
python -m tools.docs.openness study.db        # docs/openness.md and its figures, likewise
"""

from fedcore.base.files import write_texts, write_whole
from fedcore.papers.published import DIGESTS
from tools.docs import cli, computed, data, examples, experiment, methods, rooms, values
from tools.docs.blocks import rewrite

rewrite(cli.PAGE, cli.render)
rewrite(data.PAGE, data.render)
rewrite(experiment.PAGE, experiment.render)
for page in (examples.TUTORIAL, examples.OWN_METHOD):
    rewrite(page, examples.render)
for page in sorted(methods.PAGES.glob("*.md")):
    rewrite(page, methods.render)
rewrite(methods.README, methods.readme)
rewrite(methods.NAVIGATION, methods.navigation)
rewrite(rooms.PICTURE, lambda _: rooms.picture())
write_texts(DIGESTS, values.digests())
for file, text in (values.audited() | computed.render()).items():
    write_whole(file, text.encode())

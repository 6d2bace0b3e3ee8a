"""Write the parts of docs/ that follow from the code.

python -m tools.docs                       # after a change of the catalog, of fields, examples or layers
python -m tools.docs.ablations runs.db     # docs/ablations.md, from recorded runs
"""

from tools.docs import data, experiment, methods, rooms, tutorial
from tools.docs.blocks import rewrite

for written in (data, experiment, tutorial):
    rewrite(written.PAGE, written.render)
for page in sorted(methods.PAGES.glob("*.md")):
    rewrite(page, methods.render)
rooms.PICTURE.write_text(rooms.picture(), encoding="utf-8")
print(f"written: {rooms.PICTURE}")

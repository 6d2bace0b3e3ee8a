"""From the store to what people read: comparison tables, heatmap panels, curves, figures and files. No torch.

``tables`` holds the statistics, ``panels`` and ``curves`` the data of the figures, ``figures`` draws them,
``export`` writes them, ``progress`` says how far runs are.
"""

from fedcore.report.export import rounds_csv, summary_csv, summary_json, summary_latex
from fedcore.report.tables import compare

__all__ = ["compare", "rounds_csv", "summary_csv", "summary_json", "summary_latex"]

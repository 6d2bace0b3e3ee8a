"""Methods: one file per method, each joins the registry by ``@method``; see ``base.py`` for the contract."""

from fedcore.methods.base import Method, MethodConfig
from fedcore.methods.charts import DiagnosticChart, MatrixChart
from fedcore.methods.registry import get, load_all, load_file, method

__all__ = [
    "DiagnosticChart",
    "MatrixChart",
    "Method",
    "MethodConfig",
    "get",
    "load_all",
    "load_file",
    "method",
]

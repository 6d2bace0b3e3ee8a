"""Methods: one file per method, each joins the registry by ``@method``; see ``base.py`` for the contract."""

from fedcore.methods.base import DiagnosticChart, Method, MethodConfig
from fedcore.methods.registry import get, load_all, load_file, method

__all__ = ["DiagnosticChart", "Method", "MethodConfig", "get", "load_all", "load_file", "method"]

"""Installs the dashboard beside the package as ``fedlens_app``, which pyproject.toml cannot express.

Streamlit runs the scripts ``app.py``, ``dashboard.py`` and ``pages/`` at the top of the checkout.
Where packages are installed, the top belongs to all of them, so the scripts get a folder of their own.
"""

from setuptools import find_namespace_packages, find_packages, setup

setup(
    packages=[
        *find_packages(include=["fedcore*"]),
        "fedlens_app",  # app.py, dashboard.py
        *(f"fedlens_app.{name}" for name in find_namespace_packages(include=["pages*"])),
    ],
    package_dir={"fedlens_app": "."},
    package_data={
        "fedcore": ["assets/**/*", "py.typed"],
        "fedlens_app": [".streamlit/config.toml", "docs/methods/*.md"],
        "fedlens_app.pages": ["**/*.css", "**/*.html", "**/*.js", "**/*.svg"],
    },
    include_package_data=False,
    script_name="setup.py",  # which keeps this file itself out of fedlens_app
)

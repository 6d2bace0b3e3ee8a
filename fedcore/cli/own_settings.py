"""Streamlit's settings and secrets: those of FedLens and of the state folder, never of the current folder.

They decide what is served, at which address, and with which environment variables; whoever can write into
the current folder should not.
"""

import sys
from pathlib import Path

from streamlit import config
from streamlit.config_option import ConfigOption

from fedcore.base.files import PROJECT, state_folder
from fedcore.cli import common

# set by options and variables, and by a server that has found its port in use
_GIVEN = (config._DEFINED_BY_FLAG, ConfigOption.STREAMLIT_DEFINITION)
_USED = ("server.address", "server.port", "server.sslCertFile", "server.sslKeyFile")
"""Options that ``streamlit run`` has used before it imports app.py."""


def own_files(file_name: str) -> list[str]:
    """Return the places of a file that Streamlit reads, in its order: the last one decides."""
    return [str(PROJECT / ".streamlit" / file_name), str(state_folder() / file_name)]


def read_own_only() -> None:
    """Let Streamlit read ``own_files`` alone, again if it has read others, and name what is left out."""
    every, config.get_config_files = config.get_config_files, own_files
    if every is own_files:
        return
    for name in ("config.toml", "secrets.toml"):
        own = own_files(name)
        for path in map(Path, every(name)):
            if path.exists() and str(path.resolve()) not in own:
                common.print_note(common.printable(f"{path} is not read; FedLens reads {own[-1]}"))
    if (read := config._config_options) is None:
        return
    config._config_options = None
    given = {key: option.value for key, option in read.items() if option.where_defined in _GIVEN}
    now = config.get_config_options(options_from_flags=given)
    if late := [key for key in _USED if now[key].value != read[key].value]:
        sys.exit(f"error: a file comes too late for {', '.join(late)}; start with `fedlens app`")

"""Records the commit in wheels; all else is in pyproject.toml."""

from pathlib import Path
from runpy import run_path

from setuptools import setup
from setuptools.command.build_py import build_py

COMMIT = run_path(str(Path(__file__).parent / "clusterctl/cli/commit.py"))


class BuildWithCommit(build_py):
    """Writes clusterctl/commit.txt into the wheel; an editable install asks the clone itself."""

    def run(self) -> None:
        super().run()
        found = COMMIT["commit"](Path(__file__).resolve().parent / "clusterctl")
        if found and not self.editable_mode:
            Path(self.build_lib, "clusterctl", COMMIT["RECORD"]).write_text(f"{found}\n")


setup(cmdclass={"build_py": BuildWithCommit})

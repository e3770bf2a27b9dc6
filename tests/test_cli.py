from typer.testing import CliRunner

import tomadiff
from tomadiff.cli.main import app


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"tomadiff {tomadiff.__version__}"

from __future__ import annotations

import subprocess
import sys

import pytest

import puf_client


def test_the_package_exports_the_names_for_users_code() -> None:
    from puf_client.api.connect import connect
    from puf_client.data.api import ClientData, DataContext

    assert puf_client.ClientData is ClientData
    assert puf_client.DataContext is DataContext
    assert puf_client.connect is connect
    with pytest.raises(AttributeError, match="nonsense"):
        puf_client.nonsense  # noqa: B018


def test_the_surface_is_the_listed_names_with_documentation() -> None:
    assert dir(puf_client) == sorted(puf_client.__all__)
    assert puf_client.__version__
    for name in puf_client.__all__:
        assert name == "__version__" or getattr(puf_client, name).__doc__


@pytest.mark.parametrize(("name", "says"), [("Assignment", "job.batches"), ("EvaluationRequest", "remove that branch")])
def test_removed_names_say_what_to_change(name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=says):
        getattr(puf_client, name)


def test_importing_the_package_loads_no_libraries() -> None:
    code = "import sys, puf_client; puf_client.DataContext; sys.exit(bool({'torch', 'grpc'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

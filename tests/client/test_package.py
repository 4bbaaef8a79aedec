from __future__ import annotations

import subprocess
import sys

import pytest

import puf_client


def test_the_package_exports_the_names_for_users_code() -> None:
    from puf_client.data.api import ClientData, DataContext
    from puf_client.session.connect import connect

    assert puf_client.ClientData is ClientData
    assert puf_client.DataContext is DataContext
    assert puf_client.connect is connect
    with pytest.raises(AttributeError, match="nonsense"):
        puf_client.nonsense  # noqa: B018


def test_importing_the_package_loads_no_libraries() -> None:
    code = "import sys, puf_client; puf_client.DataContext; sys.exit(bool({'torch', 'grpc'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

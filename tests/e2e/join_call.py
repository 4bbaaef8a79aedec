"""Calls a server with any certificate and prints the status of the call.

    python -m tests.e2e.join_call HOST:PORT CA CERT KEY CLAIMED-NAME

Unlike `puf-client` it checks nothing before it connects.
"""

from __future__ import annotations

import sys
from pathlib import Path

import grpc

from puf_common.network.status import IDENTITY_KEY
from puf_common.v1 import federation_pb2 as fed
from puf_common.v1 import federation_pb2_grpc as rpc


def main(address: str, ca: str, cert: str, key: str, claim: str) -> None:
    chain, private = (Path(p).read_bytes() if p != "-" else None for p in (cert, key))
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes(), private, chain)
    with grpc.secure_channel(address, credentials, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            request = fed.JoinRequest(instance="call", samples=1)
            rpc.FederationStub(channel).Join(request, timeout=10, metadata=((IDENTITY_KEY, claim),))
        except grpc.RpcError as error:
            print(error.code().name, error.details())
        else:
            print("OK")


if __name__ == "__main__":
    main(*sys.argv[1:])

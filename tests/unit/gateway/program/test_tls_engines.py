"""Engines that a gateway cannot speak with: its log says why."""

from __future__ import annotations

from pathlib import Path

from support.servers.certificates import Authority, serve


async def test_b3_an_engine_that_speaks_tls_is_told_as_such(world, tmp_path: Path) -> None:
    server, port = serve(Authority(tmp_path).pair("IP:127.0.0.1"))
    try:
        front = await world.gateway(e1=f"127.0.0.1:{port}", e2="127.0.0.1:1")
        problems = {engine.name: engine.view.problem for engine in front.gateway.pool.engines}
    finally:
        server.stop(None).wait()
    assert problems["e1"].endswith("it speaks TLS, but this gateway connects to engines without TLS (--engine-ca)")
    assert "TLS" not in problems["e2"]

"""The services of docker-compose.yml as real containers, under a project name and a port of their own."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROJECT = "headrace-test"
LIMIT = 240
"""Timeout of one docker command in seconds."""


def run(command: Sequence[str], **environment: str) -> str:
    """Run a command, and return its output; a failure has all of it."""
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def in_image(image: str, *command: str, options: Sequence[str] = ()) -> str:
    """Run a command in a fresh container of an image, and return its output; `options` are those of `docker run`."""
    docker = ["docker", "run", "--rm", "--network", "none", *options]
    return run([*docker, "--entrypoint", command[0], image, *command[1:]])


class Stack:
    """Engines and a gateway, started by compose.

    Args:
        project: name of the project.
        files: compose files, each over the ones before.
        environment: more variables for compose.

    Attributes:
        address: host:port where the gateway's gRPC is published on this machine.
        http: host:port where its HTTP is.
    """

    def __init__(self, project: str = PROJECT, *files: str, **environment: str) -> None:
        self._options = ["--project-name", project, *(part for file in files for part in ("--file", file))]
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            ports = [str(probe.getsockname()[1]) for probe in (one, other)]
        self._environment = {"HEADRACE_PORT": ports[0], "HEADRACE_HTTP_PORT": ports[1], **environment}
        self.address, self.http = (f"127.0.0.1:{port}" for port in ports)

    @property
    def key(self) -> str:
        """The API key that compose made."""
        return self.compose("exec", "-T", "gateway", "cat", "/etc/headrace/keys/key").strip()

    def compose(self, *arguments: str) -> str:
        """Run compose, or the program that COMPOSE in the environment names."""
        command = [*shlex.split(os.environ["COMPOSE"]), *self._options, *arguments]
        return run(command, **self._environment)

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        return self.compose("ps", "--quiet", service).strip()

    def address_of(self, container: str) -> str:
        """Return the address of a container in the project's network."""
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return run(["docker", "inspect", container, "--format", form]).strip()

    def docker(self, verb: str, service: str, *arguments: str) -> str:
        """Run a docker command on the container of a service."""
        return run(["docker", verb, self.container(service), *arguments])

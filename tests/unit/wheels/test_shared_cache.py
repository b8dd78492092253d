"""The variables of a shared compiler cache, and what is said of a Redis that cannot be used."""

from __future__ import annotations

import socket
import threading

import pytest

from builder.wheels.sccache.configure import shared_variables
from builder.wheels.sccache.launchers.server import redis_problem, without_secrets
from builder.wheels.variables import shell_variables


def test_without_a_backend_there_are_no_variables() -> None:
    assert shared_variables({"SCCACHE_CACHE_SIZE": "1G", "SCCACHE_REGION": "here", "PATH": "/bin"}, "ops") == {}


def test_keys_begin_with_the_extension_and_the_password_leaves_the_url() -> None:
    found = shared_variables({"SCCACHE_REDIS_ENDPOINT": "redis://me:a%20b@cache:6380/2", "PATH": "/bin"}, "ops")
    assert found == {
        "SCCACHE_REDIS_ENDPOINT": "redis://cache:6380",
        "SCCACHE_REDIS_USERNAME": "me",
        "SCCACHE_REDIS_PASSWORD": "a b",
        "SCCACHE_REDIS_DB": "2",
        "SCCACHE_REDIS_KEY_PREFIX": "buildfarm/ops",
        "SCCACHE_MULTILEVEL_CHAIN": "disk,redis",
    }


@pytest.mark.parametrize(
    ("switch", "prefix", "chain"),
    [
        ("SCCACHE_REDIS", "SCCACHE_REDIS_KEY_PREFIX", "disk,redis"),
        ("SCCACHE_REDIS_CLUSTER_ENDPOINTS", "SCCACHE_REDIS_KEY_PREFIX", "disk,redis"),
        ("SCCACHE_MEMCACHED_ENDPOINT", "SCCACHE_MEMCACHED_KEY_PREFIX", "disk,memcached"),
        ("SCCACHE_BUCKET", "SCCACHE_S3_KEY_PREFIX", "disk,s3"),
        ("SCCACHE_GCS_BUCKET", "SCCACHE_GCS_KEY_PREFIX", "disk,gcs"),
        ("SCCACHE_AZURE_BLOB_CONTAINER", "SCCACHE_AZURE_KEY_PREFIX", "disk,azure"),
        ("SCCACHE_WEBDAV_ENDPOINT", "SCCACHE_WEBDAV_KEY_PREFIX", "disk,webdav"),
    ],
)
def test_every_backend_has_a_prefix_for_each_extension(switch: str, prefix: str, chain: str) -> None:
    found = shared_variables({switch: "there", prefix: "team/"}, "ops")
    assert found[prefix] == "team/ops"
    assert found["SCCACHE_MULTILEVEL_CHAIN"] == chain


def test_a_build_gets_none_of_these_variables() -> None:
    shell = {
        "SCCACHE_REDIS_PASSWORD": "x",
        "SCCACHE_BUCKET": "b",
        "AWS_SECRET_ACCESS_KEY": "s",
        "SCCACHE_CACHE_SIZE": "1",
    }
    assert shell_variables(shell) == {"SCCACHE_CACHE_SIZE": "1"}


@pytest.fixture
def server() -> socket.socket:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    return listening


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"+PONG\r\n", ""),
        (b"-NOAUTH Authentication required.\r\n", "needs a password, and SCCACHE_REDIS_PASSWORD is not set"),
        (b"-WRONGPASS invalid username-password pair\r\n", "refuses the user name or the password"),
        (b"-ERR max number of clients reached\r\n", "refuses: ERR max number of clients reached"),
        (b"", "does not answer (it closed the connection)"),
    ],
)
def test_what_redis_answers_is_one_clause(server: socket.socket, answer: bytes, sentence: str) -> None:
    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            assert connection.recv(4096) == b"*1\r\n$4\r\nPING\r\n"
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    port = server.getsockname()[1]
    problem = redis_problem({"SCCACHE_REDIS_ENDPOINT": f"127.0.0.1:{port}"})
    thread.join()
    server.close()
    assert problem == (f"Redis at 127.0.0.1:{port} {sentence}" if sentence else "")


def test_other_backends_and_sockets_are_left_to_sccache() -> None:
    assert redis_problem({"SCCACHE_BUCKET": "there"}) == ""
    assert redis_problem({"SCCACHE_REDIS_ENDPOINT": "unix:///nowhere"}) == ""
    assert redis_problem({"SCCACHE_REDIS_ENDPOINT": "redis://[::1"}) == "the value of SCCACHE_REDIS_ENDPOINT is no URL"


def test_secrets_do_not_reach_a_log() -> None:
    secrets = {"SCCACHE_REDIS_PASSWORD": "sesame", "SCCACHE_WEBDAV_TOKEN": "", "SCCACHE_REDIS_KEY_PREFIX": "buildfarm"}
    assert without_secrets("buildfarm said sesame", secrets) == "buildfarm said ***"

"""`make airflow`: a real Airflow on this machine alone, with our DAGs, our page and live tables.

Everything runs on 127.0.0.1 and ends with this program: on Ctrl-C, on TERM, and when it is killed.
What it wrote stays for the next start.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import httpx
from local_airflow.demo_folder import DemoFolder, Unusable
from local_airflow.home import ROLES, ROOT, StartFailed
from local_airflow.server import AirflowServer

PORT_PREFERRED = 8080
PAGE = "/plugin/memwal"
STATUS_SECONDS = 15


class Stopped(BaseException):
    """A signal asked to stop."""


def main() -> int:
    """Run until a signal comes (0), or something fails (1)."""
    arguments = _parse_arguments()
    _stop_on_signals()
    demo = DemoFolder(folder=arguments.home.absolute())
    try:
        with demo.claim(fresh=arguments.fresh):
            return _run(demo, arguments.port)
    except Unusable as error:
        print(f"airflow demo: {error}", file=sys.stderr)
        return 1
    except Stopped:
        return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--home",
        type=Path,
        default=ROOT / ".airflow-demo",
        help="where it keeps everything (default: .airflow-demo)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=PORT_PREFERRED,
        help=f"preferred port; another one when it is taken (default: {PORT_PREFERRED})",
    )
    parser.add_argument("--fresh", action="store_true", help="remove what earlier starts left")
    return parser.parse_args()


def _stop_on_signals() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, frame: FrameType | None) -> None:
        # One signal is enough; a second one must not interrupt the shutdown.
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise Stopped

    for number in numbers:
        signal.signal(number, stop)


def _run(demo: DemoFolder, port: int) -> int:
    print("Starting Airflow (about half a minute) ...", flush=True)
    began = time.monotonic()
    passwords = {user: secrets.token_urlsafe(9) for user in ROLES}
    server = AirflowServer(demo.home, passwords, port=port, extras=[demo.writer])
    try:
        with ThreadPoolExecutor(1) as beside:
            made = beside.submit(demo.make_tables)
            demo.home.prepare(passwords)
            made.result()
        with server:
            _unpause(server)
            _greet(server, demo, time.monotonic() - began)
            _stand_by(server)
    except (StartFailed, httpx.HTTPError) as error:
        print(f"airflow demo: {error}", file=sys.stderr)
        return 1
    except Stopped:
        print(_describe_stop(server), flush=True)
        return 0
    ended = ", ".join(f"{name} ({code})" for name, code in server.ended.items()) or "the keeper"
    print(
        f"\nairflow demo: ended by itself: {ended}. See {demo.home.folder}/*.log", file=sys.stderr
    )
    return 1


def _unpause(server: AirflowServer) -> None:
    ours = sorted(file.stem for file in (ROOT / "dags").glob("memwal_*.py"))
    client = server.client()
    client.wait_for_dags(*ours, seconds_max=120)
    for dag_id in ours:
        client.set_paused(dag_id, False)


def _greet(server: AirflowServer, demo: DemoFolder, seconds: float) -> None:
    logins = [f"{user} / {password}" for user, password in server.passwords.items()]
    lines = (
        ("page", f"{server.base_url}{PAGE}"),
        ("login", f"{'   or   '.join(logins)}   (the viewer may only look)"),
        ("tables", f"{demo.tables}/, written to every few seconds"),
        ("logs", f"{demo.home.folder}/*.log"),
    )
    print(f"Airflow is up after {seconds:.0f} s.\n")
    for name, text in lines:
        print(f"  {name:<8}{text}")
    print("\nCtrl-C stops it.", flush=True)


def _stand_by(server: AirflowServer) -> None:
    """Show how the DAGs are doing, until a signal comes or a part ends."""
    shown = ""
    while not server.has_ended(STATUS_SECONDS):
        status = _describe_status(server)
        if sys.stdout.isatty():
            print(f"\r\x1b[K{time.strftime('%H:%M:%S')}  {status}", end="", flush=True)
        elif status != shown:
            print(f"{time.strftime('%H:%M:%S')}  {status}", flush=True)
        shown = status


def _describe_status(server: AirflowServer) -> str:
    """Describe the newest runs in one line, such as `merge 4 success 1 running`."""
    try:
        runs = server.client().newest_runs()
    except httpx.HTTPError as error:
        # SQLite is busy, or the token is too old; the next look may work.
        server.forget_clients()
        return f"Airflow did not answer ({type(error).__name__})"
    counts: dict[str, Counter[str]] = {}
    for run in runs:
        name = run["dag_id"].removeprefix("memwal_")
        counts.setdefault(name, Counter())[run["state"]] += 1
    texts = (
        f"{name} " + " ".join(f"{number} {state}" for state, number in sorted(states.items()))
        for name, states in sorted(counts.items())
    )
    return " | ".join(texts) or "no runs yet"


def _describe_stop(server: AirflowServer) -> str:
    if not server.stopped:
        return "\nStopped; nothing is left running."
    return f"\nStopped in {server.stopped['stopped']:.0f} s; nothing is left running."


if __name__ == "__main__":
    sys.exit(main())

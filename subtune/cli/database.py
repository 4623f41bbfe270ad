"""`subtune db list|show|export|import|merge|gc`: the tuning database."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from subtune.cli import arguments

if TYPE_CHECKING:
    from subtune.core.measurement import Measurement
    from subtune.core.record import Record
    from subtune.core.versions import Versions
    from subtune.database import Database, Merged


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("db", help="look at, exchange and tidy the tuning database")
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=type(parser))

    def action(name: str, text: str, work: Any) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = actions.add_parser(name, parents=[common], help=text)
        arguments.add_database(sub)
        arguments.add_json(sub)
        sub.set_defaults(run=run, work=work)
        return sub

    listing = action("list", "one line per workload: its winner and the latency", _list)
    listing.add_argument("--all-versions", action="store_true", help="those of other versions of TVM and subtune too")
    action("show", "every candidate of a workload", _show).add_argument("key", metavar="WORKLOAD")
    export = action("export", "write this machine's winners as a MetaSchedule database", _export)
    export.add_argument("folder", metavar="DIRECTORY")
    export.add_argument("--threads", type=arguments.positive, metavar="N", help="winners for so many threads")
    action("import", "suggest the records of a MetaSchedule database to the next compile", _import).add_argument(
        "folder", metavar="DIRECTORY"
    )
    action("merge", "carry the rows of other databases over", _merge).add_argument(
        "sources", nargs="+", metavar="FILE|URL", help="a tuning database, which is not changed"
    )
    tidy = action("gc", "drop what other versions measured", _gc)
    tidy.add_argument("--older-than", type=arguments.duration, metavar="TIME", help="and what is older, such as 720h")


def run(args: argparse.Namespace) -> int:
    from subtune.database import Database

    with Database(args.db) as database:
        data, lines = args.work(args, database)
    print(json.dumps(data, indent=1) if args.json else "\n".join(lines))
    return 0


def _list(args: argparse.Namespace, database: Database) -> tuple[Any, list[str]]:
    records = database.list_records(versions=None if args.all_versions else _today())
    return [_record(record) for record in records], [_line(record) for record in records] or ["no records"]


def _show(args: argparse.Namespace, database: Database) -> tuple[Any, list[str]]:
    workload, records, measurements = database.show(args.key, _today())
    tried = [_measurement(measurement) for measurement in measurements]
    data = {
        "workload": workload.key,
        "args": [asdict(arg) for arg in workload.args],
        "records": [_record(record) for record in records],
        "measurements": tried,
    }
    lines = [f"workload {workload.key}: {', '.join(f'{a.name} {a.dtype}{list(a.shape)}' for a in workload.args)}"]
    lines += [f"winner {_line(record)}" for record in records]
    for row in tried:
        lines.append(f"{_outcome(row):>14}  {row['candidate']}  {row.get('message', '')}".rstrip())
    return data, lines


def _export(args: argparse.Namespace, database: Database) -> tuple[Any, list[str]]:
    from subtune.backends import device_of
    from subtune.database import export_metaschedule

    return _exchanged("exported", export_metaschedule(database, args.folder, device_of(threads=args.threads)))


def _import(args: argparse.Namespace, database: Database) -> tuple[Any, list[str]]:
    from subtune.database import import_metaschedule

    return _exchanged("imported", import_metaschedule(database, args.folder))


def _merge(args: argparse.Namespace, database: Database) -> tuple[Any, list[str]]:
    merged = database.merge(*args.sources)
    return [asdict(one) for one in merged], [_merged(one) for one in merged]


def _gc(args: argparse.Namespace, database: Database) -> tuple[Any, list[str]]:
    deleted = database.gc(older_than_s=args.older_than, versions=_today())
    return {"deleted": deleted}, [f"{deleted} rows deleted"]


def _merged(merged: Merged) -> str:
    found = {table: taken + merged.kept[table] for table, taken in merged.taken.items()}
    counts = [f"{merged.taken[table]} of {count} {table}" for table, count in found.items() if count]
    others = "; the others were here, as new or better" if any(merged.kept.values()) else ""
    return f"{merged.source}: {', '.join(counts) or 'no rows'} came over{others}"


def _today() -> list[Versions]:
    from subtune.backends import BACKENDS

    return [backend.versions() for backend in BACKENDS]


def _exchanged(verb: str, done: Any) -> tuple[Any, list[str]]:
    lines = [f"{verb} {done.count} records, left out {len(done.skipped)}"]
    return {verb: done.count, "skipped": dict(done.skipped)}, lines + [f"  {key}: {why}" for key, why in done.skipped]


def _record(record: Record) -> dict[str, Any]:
    return {**asdict(record), "candidate": str(record.candidate)}


def _line(record: Record) -> str:
    time = f"{record.timing.median_s * 1e6:.1f} us ({record.gain:.2f}x)"
    return f"{record.workload_key}  {time:>22}  {record.device}  {record.candidate}"


def _measurement(measurement: Measurement) -> dict[str, Any]:
    return {"candidate": str(measurement.candidate), "build_s": measurement.build_s, **asdict(measurement.outcome)}


def _outcome(row: dict[str, Any]) -> str:
    return f"{row['median_s'] * 1e6:.1f} us" if "median_s" in row else str(row["kind"])

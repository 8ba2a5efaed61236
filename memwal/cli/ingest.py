"""`memwal ingest`: rows from files into a table's MemWAL."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.options import OneTable
from memwal.cli.parse import parse_duration, parse_pairs
from memwal.format.layout import parse_shard

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Files, folders, patterns, Lance tables; local, s3://, gs:// or az://. -: stdin.",
    ),
]
SourceFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="parquet|arrow|csv|jsonl|lance",
        help="Default: by the files' names. With --engine spark: any that Spark reads.",
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="K=V", help="For Spark's reader; repeatable."),
]
Map = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="OLD=NEW", help="Rename a source's column; repeatable."),
]
Default = Annotated[
    list[str] | None,
    typer.Option(
        "--default",
        metavar="COLUMN=VALUE",
        help="Value for sources without the column; repeatable.",
    ),
]
DeleteColumn = Annotated[
    str | None,
    typer.Option(
        "--delete-column", metavar="NAME", help="A boolean column: true deletes the row's key."
    ),
]
ToShard = Annotated[
    str | None, typer.Option("--shard", metavar="ID", help="Write to this shard, without routing.")
]
Id = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="NAME", help="The ingest's name. Default: made from sources and options."
    ),
]
Again = Annotated[bool, typer.Option("--again", help="Ingest completely ingested files again.")]
SkipUnknown = Annotated[
    bool, typer.Option("--skip-unknown-columns", help="Leave out columns the table lacks.")
]
MissingAsNull = Annotated[
    bool,
    typer.Option(
        "--missing-as-null", help="Write NULL for columns that a source lacks, replacing values."
    ),
]
ChunkRows = Annotated[
    int | None,
    typer.Option(
        "--rows-per-chunk",
        metavar="N",
        min=1,
        help="Rows routed at a time. Default: by their size.",
    ),
]
Check = Annotated[
    bool,
    typer.Option("--check", help="Read everything and list what can't be written; write nothing."),
]
BadRows = Annotated[
    str | None,
    typer.Option(
        "--bad-rows", metavar="FILE", help="Set rows aside that can't be written: JSON lines."
    ),
]
BadRowsMax = Annotated[
    int, typer.Option("--bad-rows-max", metavar="N", min=0, help="Stop if there are more.")
]
ResumeCorrected = Annotated[
    bool,
    typer.Option(
        "--resume-corrected",
        help="Continue with files corrected after the rows already written.",
    ),
]
Merge = Annotated[
    bool,
    typer.Option(
        "--merge", help="Merge at the start, when too many generations wait, and at the end."
    ),
]
BacklogMax = Annotated[
    int | None,
    typer.Option(
        "--backlog-generations-max",
        metavar="N",
        min=1,
        help="Pause (or merge) while more generations wait. Default: no limit; 64 with --merge.",
    ),
]
BacklogWait = Annotated[
    str, typer.Option("--backlog-wait", metavar="10m", help="How long to wait for merges.")
]


@command(JobFlags)
def ingest(
    table: OneTable,
    sources: Sources,
    source_format: SourceFormat = None,
    option: SourceOption = None,
    renamed: Map = None,
    default: Default = None,
    delete_column: DeleteColumn = None,
    shard: ToShard = None,
    ingest_id: Id = None,
    again: Again = False,
    skip_unknown_columns: SkipUnknown = False,
    missing_as_null: MissingAsNull = False,
    rows_per_chunk: ChunkRows = None,
    check: Check = False,
    bad_rows: BadRows = None,
    bad_rows_max: BadRowsMax = 1000,
    resume_corrected: ResumeCorrected = False,
    merge: Merge = False,
    backlog_generations_max: BacklogMax = None,
    backlog_wait: BacklogWait = "10m",
    *,
    flags: JobFlags,
) -> Job:
    """Write files into the MemWAL, each row once.

    After a crash, run it again to continue.
    """
    if check:
        flags = replace(flags, dry_run=True)
    from memwal.ingest.job import run_ingest
    from memwal.ingest.plan import IngestOptions
    from memwal.ingest.request import IngestRequest

    return flags.job(
        run_ingest,
        IngestOptions,
        table,
        request=IngestRequest(
            sources=tuple(sources),
            format=source_format,
            source_options=tuple(parse_pairs(option or [], "--option").items()),
            renamed=tuple(parse_pairs(renamed or [], "--map", "OLD=NEW").items()),
            defaults=tuple(parse_pairs(default or [], "--default", "COLUMN=VALUE").items()),
            delete_column=delete_column,
            shard=None if shard is None else parse_shard(shard),
            ingest_id=ingest_id,
            again=again,
            skips_unknown_columns=skip_unknown_columns,
            missing_as_null=missing_as_null,
            chunk_rows=rows_per_chunk,
        ),
        check=check,
        bad_rows=bad_rows,
        bad_rows_max=bad_rows_max,
        resume_corrected=resume_corrected,
        merge=merge,
        backlog_generations_max=backlog_generations_max,
        backlog_wait_seconds_max=parse_duration(backlog_wait, "--backlog-wait"),
    )

"""`memwal erase`, `erase resume`, `erase verify` and `erase list`: tables in, report out."""

from memwal.jobs.erase.job.erasing import EraseOptions, run_erase
from memwal.jobs.erase.job.proofs import ProofOptions, run_list, run_verify
from memwal.jobs.erase.job.resuming import ResumeOptions, run_resume

__all__ = [
    "EraseOptions",
    "ProofOptions",
    "ResumeOptions",
    "run_erase",
    "run_list",
    "run_resume",
    "run_verify",
]

"""memwal keeps the MemWAL write tier of Lance tables healthy.

The map, lowest layer first: `model`, `errors` (values) · `layout`, `codec`, `fold`, `align` (pure)
· `plan/` (decides) · `ports` (the doors) · `apply/` (does) · `store/` (the only I/O) · `testing`
(fakes) · `cli` and the sibling package `jobs` (wiring). One word names a job in every layer.
"""

__version__ = "0.1.0"
DISTRIBUTION = "lance-memwal"

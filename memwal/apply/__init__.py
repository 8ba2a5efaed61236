"""Does: view, plan, check, act, report. Speaks to ports only."""

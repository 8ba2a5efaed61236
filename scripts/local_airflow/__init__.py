"""A real Airflow on this machine alone, for `make airflow` and for the tests.

`home` lays out AIRFLOW_HOME and the settings, `keeper` is the process under which everything runs,
`server` starts and stops it, `rest` talks to its API, `leftovers` finds processes that outlived it.
"""

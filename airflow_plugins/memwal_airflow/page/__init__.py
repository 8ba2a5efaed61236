"""The MemWAL page in Airflow's UI.

`app` serves, `access` guards, `feed` looks at the tables in the background, `view_model` and
`plots` turn what was seen into what is shown (pure), `actions` starts the backfill DAG, `static/`
is the page itself.
"""

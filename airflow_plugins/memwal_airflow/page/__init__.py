"""The MemWAL page in Airflow's UI.

`app` serves, `access` guards, `feed` looks at all tables in the background and `details` at what
somebody asks for, `view_model`, `history`, `alerts` and `plots` turn that into what is shown
(pure), `actions` starts the backfill DAG, `static/` is the page itself.
"""

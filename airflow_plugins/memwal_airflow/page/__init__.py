"""The MemWAL page in Airflow's UI.

`source` reads which tables there are, `feed` looks at them in the background, `answers` turns what
`memwal status` and `memwal runs` said into what is shown (pure), `access` guards, `app` serves,
`static/` is the page itself. Runs are started through Airflow's own API, by whoever looks.
"""

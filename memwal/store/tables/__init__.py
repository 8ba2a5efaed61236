"""Tables as Lance stores them: versions, generations, indexes, namespaces, and the table's view.

Apart from the jobs' own stores, this is the only place that knows Lance. memwal's own documents
are in `records/`.
"""

"""Tables as Lance has them: versions, generations, indexes, names in namespaces; the view of one.

With the jobs' own stores, the only place that knows Lance. Documents of ours are for `records/`.
"""

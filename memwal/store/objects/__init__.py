"""Files, whatever stores them: the implementations of the Objects port, their faults and retries.

Nothing here knows a table or what a name means: it gets names and gives bytes.
"""

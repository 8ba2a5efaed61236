"""How tasks reach memwal: the connection type, command lines, questions; texts and names checked.

Nothing here knows an operator. What runs for long is for `processes/`.
"""

"""How tasks reach memwal: the connection type, command lines, questions; checks of texts."""

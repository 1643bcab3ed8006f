# none: the tool needs no server.

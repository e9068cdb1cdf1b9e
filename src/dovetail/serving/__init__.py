"""A server for a frozen program's file: `dovetail serve`. It needs the packages of `dovetail[serve]`."""

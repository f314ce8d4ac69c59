"""The suffixes that represent types in the names of functions."""

SUFFIXES = {
    "bigint": "bigint",
    "int": "int",
    "string": "string",
    "double": "double",
    "boolean": "boolean",
    "timestamp": "timestamp",
    "timestamp_ntz": "ntz",
    "date": "date",
    "decimal(10,2)": "decimal",
    "smallint": "smallint",
    "tinyint": "tinyint",
    "float": "float",
    "binary": "binary",
    "interval day to second": "interval",
    "decimal(38,18)": "wide",
    "array<bigint>": "array",
    "struct<v:bigint,`B.c`:string,k:double>": "struct",
    "map<string,bigint>": "map",
    "array<struct<x:timestamp,y:bigint>>": "nested",
    "time(6)": "time",
}

"""Against other servers of functions, and against what people do in PySpark without one."""

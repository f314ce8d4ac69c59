"""What plugin authors declare: functions, their types and hooks, as the server checks and holds them."""

# Prints the version of the JDK that Spark would use, if it is 17 or later; otherwise nothing.
java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
version=$("$java" -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1)
if [ "${version:-0}" -ge 17 ]; then
  echo "$version"
fi

"""Settings for a Spark that lives for a minute and handles a few records."""

QUICK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "OFF",
    # A JVM that lives for a minute gains nothing from the better compilers, and need not verify Spark's classes.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
}


def defaults_file() -> str:
    """The same as `spark-defaults.conf`, for a Spark that another program starts."""
    return "".join(f"{name} {value}\n" for name, value in QUICK.items())

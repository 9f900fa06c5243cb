"""The ways in and out: files, the command line, HTTP, MQTT, Spark, the page, pictures."""

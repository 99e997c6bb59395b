"""Traces for OpenTelemetry: spans of requests and of attempts, sent to a collector by OTLP over HTTP."""

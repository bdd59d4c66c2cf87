-- Once, as a superuser. PostgreSQL 15 or newer.
CREATE ROLE holdfast LOGIN PASSWORD 'replace-me';
CREATE DATABASE holdfast OWNER holdfast;

-- Behind a transaction pooler (DATABASE_POOLED=on) a process cannot set these for its sessions.
ALTER ROLE holdfast SET idle_in_transaction_session_timeout = '5s';
ALTER ROLE holdfast SET lock_timeout = '5s';
ALTER ROLE holdfast SET statement_timeout = '30s';
ALTER ROLE holdfast SET default_transaction_isolation = 'read committed';

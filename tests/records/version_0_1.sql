BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('version_0_1');
CREATE TABLE api_token (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	digest TEXT NOT NULL,
	scopes JSON NOT NULL,
	project TEXT,
	quotas JSON,
	created DATETIME NOT NULL,
	expires DATETIME,
	revoked DATETIME,
	last_used DATETIME,
	CONSTRAINT pk_api_token PRIMARY KEY (id),
	CONSTRAINT uq_api_token_name UNIQUE (name),
	CONSTRAINT uq_api_token_digest UNIQUE (digest)
);
CREATE TABLE audit_event (
	id INTEGER NOT NULL,
	created DATETIME NOT NULL,
	subject TEXT NOT NULL,
	address TEXT NOT NULL,
	action TEXT NOT NULL,
	job_id INTEGER,
	detail JSON NOT NULL,
	CONSTRAINT pk_audit_event PRIMARY KEY (id),
	CONSTRAINT fk_audit_event_job_id FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE best_record (
	task_id INTEGER NOT NULL,
	record_id INTEGER NOT NULL,
	latency DOUBLE NOT NULL,
	confirmed BOOLEAN NOT NULL,
	CONSTRAINT pk_best_record PRIMARY KEY (task_id),
	CONSTRAINT fk_best_record_task_id FOREIGN KEY(task_id) REFERENCES task (id),
	CONSTRAINT uq_best_record_record_id UNIQUE (record_id),
	CONSTRAINT fk_best_record_record_id FOREIGN KEY(record_id) REFERENCES measure_record (id)
);
CREATE TABLE build (
	id INTEGER NOT NULL,
	job_id INTEGER NOT NULL,
	model_index INTEGER NOT NULL,
	strict BOOLEAN NOT NULL,
	profile BOOLEAN NOT NULL,
	state TEXT NOT NULL,
	message TEXT,
	attempts INTEGER NOT NULL,
	quarantined BOOLEAN NOT NULL,
	library_key TEXT,
	archive TEXT,
	sha256 TEXT,
	n_bytes BIGINT,
	created DATETIME NOT NULL,
	updated DATETIME NOT NULL,
	CONSTRAINT pk_build PRIMARY KEY (id),
	CONSTRAINT ck_build_state_known CHECK (state IN ('queued', 'running', 'done', 'failed')),
	CONSTRAINT fk_build_job_id FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE calibration (
	id INTEGER NOT NULL,
	device TEXT NOT NULL,
	host TEXT NOT NULL,
	target_id INTEGER NOT NULL,
	kernel TEXT NOT NULL,
	secs DOUBLE NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_calibration PRIMARY KEY (id),
	CONSTRAINT fk_calibration_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
CREATE TABLE cost_model (
	target_id INTEGER NOT NULL,
	kind TEXT NOT NULL,
	n_records INTEGER NOT NULL,
	blob BLOB NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_cost_model PRIMARY KEY (target_id, kind),
	CONSTRAINT fk_cost_model_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
CREATE TABLE device_status (
	name TEXT NOT NULL,
	worker TEXT NOT NULL,
	host TEXT NOT NULL,
	fingerprint JSON NOT NULL,
	state TEXT NOT NULL,
	reason TEXT NOT NULL,
	busy_share DOUBLE NOT NULL,
	busy_secs DOUBLE NOT NULL,
	job_id INTEGER,
	heartbeat DATETIME NOT NULL,
	CONSTRAINT pk_device_status PRIMARY KEY (name),
	CONSTRAINT ck_device_status_state_known CHECK (state IN ('measuring', 'idle', 'apart', 'lost')),
	CONSTRAINT fk_device_status_job_id FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE event (
	job_id INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	kind TEXT NOT NULL,
	data JSON NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_event PRIMARY KEY (job_id, sequence),
	CONSTRAINT fk_event_job_id FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE extraction (
	network_id INTEGER NOT NULL,
	target_id INTEGER NOT NULL,
	notes JSON NOT NULL,
	n_kernel_calls INTEGER NOT NULL,
	extra JSON NOT NULL,
	CONSTRAINT pk_extraction PRIMARY KEY (network_id, target_id),
	CONSTRAINT fk_extraction_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_extraction_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
CREATE TABLE idempotency_key (
	subject TEXT NOT NULL,
	"key" TEXT NOT NULL,
	fingerprint TEXT NOT NULL,
	job_id INTEGER NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_idempotency_key PRIMARY KEY (subject, "key"),
	CONSTRAINT fk_idempotency_key_job_id FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE imported_round (
	task_id INTEGER NOT NULL,
	n_measured INTEGER NOT NULL,
	n_failed INTEGER NOT NULL,
	n_timeouts INTEGER NOT NULL,
	best_secs DOUBLE,
	run_secs DOUBLE NOT NULL,
	CONSTRAINT pk_imported_round PRIMARY KEY (task_id),
	CONSTRAINT fk_imported_round_task_id FOREIGN KEY(task_id) REFERENCES task (id)
);
CREATE TABLE job (
	id INTEGER NOT NULL,
	network_id INTEGER,
	target_id INTEGER,
	name TEXT,
	request JSON,
	submission TEXT NOT NULL,
	hidden BOOLEAN NOT NULL,
	owner TEXT,
	project TEXT,
	n_events INTEGER NOT NULL,
	attempts INTEGER NOT NULL,
	quarantined BOOLEAN NOT NULL,
	objective TEXT NOT NULL,
	seed BIGINT NOT NULL,
	budget_trials INTEGER,
	budget_secs DOUBLE,
	spent_secs DOUBLE NOT NULL,
	reached_trials INTEGER,
	virtual_secs DOUBLE NOT NULL,
	priority INTEGER NOT NULL,
	state TEXT NOT NULL,
	settings JSON NOT NULL,
	message TEXT,
	note TEXT,
	created DATETIME NOT NULL,
	updated DATETIME NOT NULL,
	CONSTRAINT pk_job PRIMARY KEY (id),
	CONSTRAINT uq_job_network_id_target_id_objective_seed_submission UNIQUE (network_id, target_id, objective, seed, submission),
	CONSTRAINT ck_job_state_known CHECK (state IN ('queued', 'running', 'paused', 'done', 'failed', 'cancelled')),
	CONSTRAINT fk_job_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_job_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
CREATE TABLE job_failure (
	job_id INTEGER NOT NULL,
	error_kind TEXT NOT NULL,
	n_trials INTEGER NOT NULL,
	record_id INTEGER NOT NULL,
	CONSTRAINT pk_job_failure PRIMARY KEY (job_id, error_kind),
	CONSTRAINT fk_job_failure_job_id FOREIGN KEY(job_id) REFERENCES job (id),
	CONSTRAINT fk_job_failure_record_id FOREIGN KEY(record_id) REFERENCES measure_record (id)
);
CREATE TABLE job_status (
	job_id INTEGER NOT NULL,
	phase TEXT NOT NULL,
	task_id INTEGER,
	gains JSON NOT NULL,
	spent_trials INTEGER NOT NULL,
	outlook JSON,
	updated DATETIME NOT NULL,
	CONSTRAINT pk_job_status PRIMARY KEY (job_id),
	CONSTRAINT fk_job_status_job_id FOREIGN KEY(job_id) REFERENCES job (id),
	CONSTRAINT fk_job_status_task_id FOREIGN KEY(task_id) REFERENCES task (id)
);
CREATE TABLE job_tag (
	job_id INTEGER NOT NULL,
	tag TEXT NOT NULL,
	CONSTRAINT pk_job_tag PRIMARY KEY (job_id, tag),
	CONSTRAINT fk_job_tag_job_id FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE kernel_code (
	record_id INTEGER NOT NULL,
	part TEXT NOT NULL,
	asked DATETIME NOT NULL,
	attempts INTEGER NOT NULL,
	text TEXT,
	message TEXT,
	CONSTRAINT pk_kernel_code PRIMARY KEY (record_id, part),
	CONSTRAINT fk_kernel_code_record_id FOREIGN KEY(record_id) REFERENCES measure_record (id)
);
CREATE TABLE lease (
	name TEXT NOT NULL,
	holder TEXT NOT NULL,
	epoch BIGINT NOT NULL,
	expires DATETIME NOT NULL,
	CONSTRAINT pk_lease PRIMARY KEY (name)
);
CREATE TABLE library (
	id INTEGER NOT NULL,
	"key" TEXT NOT NULL,
	network_id INTEGER,
	target_id INTEGER NOT NULL,
	manifest JSON NOT NULL,
	path TEXT NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_library PRIMARY KEY (id),
	CONSTRAINT uq_library_key UNIQUE ("key"),
	CONSTRAINT fk_library_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_library_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
CREATE TABLE measure_feature (
	record_id INTEGER NOT NULL,
	features BLOB NOT NULL,
	CONSTRAINT pk_measure_feature PRIMARY KEY (record_id),
	CONSTRAINT fk_measure_feature_record_id FOREIGN KEY(record_id) REFERENCES measure_record (id)
);
CREATE TABLE measure_record (
	id INTEGER NOT NULL,
	task_id INTEGER NOT NULL,
	pick_id INTEGER,
	trace TEXT NOT NULL,
	trace_hash TEXT NOT NULL,
	module_hash TEXT,
	run_secs JSON,
	latency DOUBLE,
	clock_factor DOUBLE,
	error_kind TEXT,
	error_text TEXT,
	verified BOOLEAN NOT NULL,
	max_error DOUBLE,
	confirmed_secs JSON,
	confirmed_factor DOUBLE,
	conditions JSON,
	worker TEXT NOT NULL,
	created DATETIME NOT NULL,
	origin TEXT,
	CONSTRAINT pk_measure_record PRIMARY KEY (id),
	CONSTRAINT uq_measure_record_task_id_trace_hash UNIQUE (task_id, trace_hash),
	CONSTRAINT ck_measure_record_timed_or_failed CHECK ((run_secs IS NULL) <> (error_kind IS NULL)),
	CONSTRAINT ck_measure_record_latency_of_samples CHECK ((run_secs IS NULL) = (latency IS NULL)),
	CONSTRAINT ck_measure_record_verified_has_samples CHECK (NOT verified OR run_secs IS NOT NULL),
	CONSTRAINT ck_measure_record_error_kind_known CHECK (error_kind IN ('build_error', 'build_timeout', 'run_error', 'run_timeout', 'wrong_result', 'worker_lost')),
	CONSTRAINT fk_measure_record_task_id FOREIGN KEY(task_id) REFERENCES task (id),
	CONSTRAINT fk_measure_record_pick_id FOREIGN KEY(pick_id) REFERENCES pick (id)
);
CREATE TABLE network (
	id INTEGER NOT NULL,
	sha256 TEXT NOT NULL,
	name TEXT NOT NULL,
	inputs JSON NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_network PRIMARY KEY (id),
	CONSTRAINT uq_network_sha256 UNIQUE (sha256)
);
CREATE TABLE network_task (
	network_id INTEGER NOT NULL,
	task_id INTEGER NOT NULL,
	weight INTEGER NOT NULL,
	position INTEGER NOT NULL,
	CONSTRAINT pk_network_task PRIMARY KEY (network_id, task_id),
	CONSTRAINT ck_network_task_weight_positive CHECK (weight >= 1),
	CONSTRAINT fk_network_task_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_network_task_task_id FOREIGN KEY(task_id) REFERENCES task (id)
);
CREATE TABLE offered_pack (
	pack TEXT NOT NULL,
	sha256 TEXT NOT NULL,
	n_bytes BIGINT NOT NULL,
	capabilities JSON NOT NULL,
	minutes DOUBLE NOT NULL,
	created DATETIME NOT NULL,
	ended DATETIME,
	gpu JSON,
	device TEXT,
	"key" TEXT,
	n_lines INTEGER NOT NULL,
	has_results BOOLEAN NOT NULL,
	attempts JSON NOT NULL,
	problem TEXT,
	CONSTRAINT pk_offered_pack PRIMARY KEY (pack)
);
CREATE TABLE pack_portion (
	pack TEXT NOT NULL,
	first_line INTEGER NOT NULL,
	lines TEXT NOT NULL,
	CONSTRAINT pk_pack_portion PRIMARY KEY (pack, first_line),
	CONSTRAINT fk_pack_portion_pack FOREIGN KEY(pack) REFERENCES offered_pack (pack)
);
CREATE TABLE pick (
	id INTEGER NOT NULL,
	job_id INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	task_id INTEGER NOT NULL,
	n_trials INTEGER NOT NULL,
	terms JSON NOT NULL,
	done BOOLEAN NOT NULL,
	secs DOUBLE,
	n_measured INTEGER NOT NULL,
	n_failed INTEGER NOT NULL,
	n_timeouts INTEGER NOT NULL,
	best_secs DOUBLE,
	run_secs DOUBLE NOT NULL,
	total_secs DOUBLE,
	job_trials INTEGER,
	attempts INTEGER NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_pick PRIMARY KEY (id),
	CONSTRAINT uq_pick_job_id_sequence UNIQUE (job_id, sequence),
	CONSTRAINT fk_pick_job_id FOREIGN KEY(job_id) REFERENCES job (id),
	CONSTRAINT fk_pick_task_id FOREIGN KEY(task_id) REFERENCES task (id)
);
CREATE TABLE profile (
	network_id INTEGER NOT NULL,
	target_id INTEGER NOT NULL,
	owner TEXT NOT NULL,
	content JSON NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_profile PRIMARY KEY (network_id, target_id, owner),
	CONSTRAINT fk_profile_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_profile_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
CREATE TABLE remote_call (
	id TEXT NOT NULL,
	device TEXT NOT NULL,
	function TEXT NOT NULL,
	arguments BLOB NOT NULL,
	files JSON NOT NULL,
	timeout_secs DOUBLE NOT NULL,
	"key" TEXT,
	answer BLOB,
	CONSTRAINT pk_remote_call PRIMARY KEY (id)
);
CREATE TABLE remote_device (
	name TEXT NOT NULL,
	owner TEXT NOT NULL,
	"key" TEXT NOT NULL,
	heartbeat DATETIME NOT NULL,
	n_builders INTEGER NOT NULL,
	gpu JSON,
	CONSTRAINT pk_remote_device PRIMARY KEY (name)
);
CREATE TABLE suspect (
	task_id INTEGER NOT NULL,
	trace_hash TEXT NOT NULL,
	blame DOUBLE NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_suspect PRIMARY KEY (task_id, trace_hash),
	CONSTRAINT fk_suspect_task_id FOREIGN KEY(task_id) REFERENCES task (id)
);
CREATE TABLE target (
	id INTEGER NOT NULL,
	spec TEXT NOT NULL,
	device JSON NOT NULL,
	fingerprint TEXT NOT NULL,
	clock_secs DOUBLE,
	peaks JSON,
	CONSTRAINT pk_target PRIMARY KEY (id),
	CONSTRAINT uq_target_fingerprint UNIQUE (fingerprint)
);
CREATE TABLE task (
	id INTEGER NOT NULL,
	workload_id INTEGER NOT NULL,
	target_id INTEGER NOT NULL,
	CONSTRAINT pk_task PRIMARY KEY (id),
	CONSTRAINT uq_task_workload_id_target_id UNIQUE (workload_id, target_id),
	CONSTRAINT fk_task_workload_id FOREIGN KEY(workload_id) REFERENCES workload (id),
	CONSTRAINT fk_task_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
CREATE TABLE upload (
	id INTEGER NOT NULL,
	job_id INTEGER NOT NULL,
	owner TEXT,
	sha256 TEXT NOT NULL,
	n_bytes BIGINT NOT NULL,
	sent BOOLEAN NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_upload PRIMARY KEY (id),
	CONSTRAINT fk_upload_job_id FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE webhook (
	job_id INTEGER NOT NULL,
	of_service BOOLEAN NOT NULL,
	url TEXT NOT NULL,
	delivery TEXT,
	state TEXT,
	attempts INTEGER NOT NULL,
	attempted DATETIME,
	due DATETIME,
	status TEXT,
	delivered BOOLEAN NOT NULL,
	CONSTRAINT pk_webhook PRIMARY KEY (job_id, of_service),
	CONSTRAINT fk_webhook_job_id FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE worker (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	host TEXT NOT NULL,
	pid INTEGER NOT NULL,
	role TEXT NOT NULL,
	device JSON NOT NULL,
	job_id INTEGER,
	activity TEXT NOT NULL,
	busy_secs DOUBLE NOT NULL,
	busy_share DOUBLE NOT NULL,
	started DATETIME NOT NULL,
	heartbeat DATETIME NOT NULL,
	progress DATETIME,
	stopped DATETIME,
	CONSTRAINT pk_worker PRIMARY KEY (id),
	CONSTRAINT uq_worker_name UNIQUE (name),
	CONSTRAINT fk_worker_job_id FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE TABLE workload (
	id INTEGER NOT NULL,
	hash TEXT NOT NULL,
	engine TEXT NOT NULL,
	ir BLOB NOT NULL,
	flop DOUBLE NOT NULL,
	name TEXT NOT NULL,
	profile JSON,
	CONSTRAINT pk_workload PRIMARY KEY (id),
	CONSTRAINT uq_workload_hash_engine UNIQUE (hash, engine)
);
CREATE INDEX ix_remote_call_device ON remote_call (device);
CREATE INDEX ix_task_target_id ON task (target_id);
CREATE UNIQUE INDEX uq_job_submission ON job (submission) WHERE submission <> '';
CREATE INDEX ix_job_project ON job (project);
CREATE INDEX ix_job_state ON job (state);
CREATE INDEX ix_job_owner ON job (owner);
CREATE INDEX ix_calibration_target_id_kernel_device_id ON calibration (target_id, kernel, device, id);
CREATE INDEX ix_network_task_task_id ON network_task (task_id);
CREATE INDEX ix_job_tag_tag ON job_tag (tag);
CREATE INDEX ix_pick_open ON pick (job_id, sequence) WHERE done = 0;
CREATE INDEX ix_pick_task_id ON pick (task_id);
CREATE INDEX ix_audit_event_created ON audit_event (created);
CREATE INDEX ix_audit_event_job_id ON audit_event (job_id);
CREATE INDEX ix_upload_owner_created ON upload (owner, created);
CREATE INDEX ix_upload_job_id ON upload (job_id);
CREATE INDEX ix_webhook_due ON webhook (due);
CREATE INDEX ix_build_job_id_id ON build (job_id, id);
CREATE INDEX ix_build_state ON build (state);
CREATE INDEX ix_measure_record_pick_id ON measure_record (pick_id);
CREATE INDEX ix_measure_record_failed ON measure_record (id) WHERE error_kind IS NOT NULL;
CREATE INDEX ix_measure_record_task_id_latency ON measure_record (task_id, latency);
COMMIT;

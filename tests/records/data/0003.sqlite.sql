CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0003');
CREATE TABLE api_token (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	digest TEXT NOT NULL,
	scopes JSON NOT NULL,
	created DATETIME NOT NULL,
	expires DATETIME,
	revoked DATETIME,
	last_used DATETIME,
	CONSTRAINT pk_api_token PRIMARY KEY (id),
	CONSTRAINT uq_api_token_name UNIQUE (name),
	CONSTRAINT uq_api_token_digest UNIQUE (digest)
);
INSERT INTO "api_token" VALUES(1,'ci','0000000000000000000000000000000000000000000000000000000000000000','["read", "submit"]','2026-01-01 00:00:00',NULL,NULL,NULL);
CREATE TABLE audit_event (
	id INTEGER NOT NULL,
	created DATETIME NOT NULL,
	subject TEXT NOT NULL,
	address TEXT NOT NULL,
	action TEXT NOT NULL,
	job_id INTEGER,
	detail JSON NOT NULL,
	CONSTRAINT pk_audit_event PRIMARY KEY (id),
	CONSTRAINT fk_audit_event_job_id_job FOREIGN KEY(job_id) REFERENCES job (id)
);
INSERT INTO "audit_event" VALUES(1,'2026-01-01 00:00:00','ci','127.0.0.1','tune',2,'{"zoo": "mlp"}');
CREATE TABLE best_record (
	task_id INTEGER NOT NULL,
	record_id INTEGER NOT NULL,
	latency DOUBLE NOT NULL,
	confirmed BOOLEAN NOT NULL,
	CONSTRAINT pk_best_record PRIMARY KEY (task_id),
	CONSTRAINT fk_best_record_record_id FOREIGN KEY(record_id) REFERENCES measure_record (id),
	CONSTRAINT fk_best_record_task_id FOREIGN KEY(task_id) REFERENCES task (id),
	CONSTRAINT uq_best_record_record_id UNIQUE (record_id)
);
INSERT INTO "best_record" VALUES(1,3,1.2,1);
CREATE TABLE build (
	id INTEGER NOT NULL,
	job_id INTEGER NOT NULL,
	model_index INTEGER NOT NULL,
	strict BOOLEAN NOT NULL,
	state TEXT NOT NULL,
	message TEXT,
	library_key TEXT,
	archive TEXT,
	sha256 TEXT,
	n_bytes BIGINT,
	created DATETIME NOT NULL,
	updated DATETIME NOT NULL,
	CONSTRAINT pk_build PRIMARY KEY (id),
	CONSTRAINT ck_build_state_known CHECK (state IN ('queued', 'running', 'done', 'failed')),
	CONSTRAINT fk_build_job_id_job FOREIGN KEY(job_id) REFERENCES job (id)
);
INSERT INTO "build" VALUES(1,1,0,0,'queued',NULL,NULL,NULL,NULL,NULL,'2026-01-01 00:00:00','2026-01-01 00:00:00');
CREATE TABLE cost_model (
	target_id INTEGER NOT NULL,
	kind TEXT NOT NULL,
	n_records INTEGER NOT NULL,
	blob BLOB NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_cost_model PRIMARY KEY (target_id, kind),
	CONSTRAINT fk_cost_model_target_id FOREIGN KEY(target_id) REFERENCES target (id)
);
INSERT INTO "cost_model" VALUES(1,'xgboost',1,X'806D6F64656C','2026-01-01 00:00:00');
CREATE TABLE event (
	job_id INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	kind TEXT NOT NULL,
	data JSON NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_event PRIMARY KEY (job_id, sequence),
	CONSTRAINT fk_event_job_id_job FOREIGN KEY(job_id) REFERENCES job (id)
);
INSERT INTO "event" VALUES(1,1,'pick','{"pick": 1, "task_id": 1, "n_trials": 2, "reason": "warm_up"}','2026-01-01 00:00:00');
INSERT INTO "event" VALUES(1,2,'pick','{"pick": 2, "task_id": 1, "n_trials": 2, "reason": "gradient"}','2026-01-01 00:00:00');
INSERT INTO "event" VALUES(1,3,'pick','{"pick": 3, "task_id": 2, "n_trials": 2, "reason": "warm_up"}','2026-01-01 00:00:00');
INSERT INTO "event" VALUES(1,4,'trial','{"pick": 1, "task_id": 1, "record": 1, "latency_secs": 2.0, "error_kind": null, "best": true}','2026-01-01 00:00:00');
INSERT INTO "event" VALUES(1,5,'trial','{"pick": 1, "task_id": 1, "record": 2, "latency_secs": null, "error_kind": "run_timeout", "best": false}','2026-01-01 00:00:00');
INSERT INTO "event" VALUES(1,6,'trial','{"pick": 2, "task_id": 1, "record": 3, "latency_secs": 1.0, "error_kind": null, "best": true}','2026-01-01 00:00:00');
INSERT INTO "event" VALUES(1,7,'state','{"state": "paused", "message": "stopped by hand"}','2026-01-01 00:00:00');
INSERT INTO "event" VALUES(2,1,'state','{"state": "queued", "message": null}','2026-01-01 00:00:00');
INSERT INTO "event" VALUES(3,1,'state','{"state": "queued", "message": null}','2026-01-01 00:00:00');
INSERT INTO "event" VALUES(1,8,'build','{"build": 1, "state": "queued", "message": null}','2026-01-01 00:00:00');
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
INSERT INTO "extraction" VALUES(1,1,'["1 operator is not tuned"]',5,'{}');
CREATE TABLE idempotency_key (
	subject TEXT NOT NULL,
	"key" TEXT NOT NULL,
	fingerprint TEXT NOT NULL,
	job_id INTEGER NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_idempotency_key PRIMARY KEY (subject, "key"),
	CONSTRAINT fk_idempotency_key_job_id_job FOREIGN KEY(job_id) REFERENCES job (id)
);
INSERT INTO "idempotency_key" VALUES('ci','key-1','fingerprint',2,'2026-01-01 00:00:00');
CREATE TABLE imported_round (
	task_id INTEGER NOT NULL,
	n_measured INTEGER NOT NULL,
	n_failed INTEGER NOT NULL,
	n_timeouts INTEGER NOT NULL,
	best_secs DOUBLE,
	run_secs DOUBLE NOT NULL,
	CONSTRAINT pk_imported_round PRIMARY KEY (task_id),
	CONSTRAINT fk_imported_round_task_id_task FOREIGN KEY(task_id) REFERENCES task (id)
);
INSERT INTO "imported_round" VALUES(1,1,0,0,3.0,3.0);
CREATE TABLE "job" (
	id INTEGER NOT NULL,
	network_id INTEGER,
	target_id INTEGER,
	objective TEXT NOT NULL,
	seed BIGINT NOT NULL,
	budget_trials INTEGER,
	budget_secs DOUBLE,
	spent_secs DOUBLE NOT NULL,
	priority INTEGER NOT NULL,
	state TEXT NOT NULL,
	settings JSON NOT NULL,
	message TEXT,
	created DATETIME NOT NULL,
	updated DATETIME NOT NULL,
	reached_trials INTEGER,
	virtual_secs DOUBLE DEFAULT '0' NOT NULL,
	name TEXT,
	request JSON,
	submission TEXT DEFAULT '' NOT NULL,
	hidden BOOLEAN DEFAULT 0 NOT NULL,
	n_events INTEGER DEFAULT '0' NOT NULL,
	CONSTRAINT pk_job PRIMARY KEY (id),
	CONSTRAINT fk_job_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_job_target_id FOREIGN KEY(target_id) REFERENCES target (id),
	CONSTRAINT ck_job_state_known CHECK (state IN ('queued', 'running', 'paused', 'done', 'failed', 'cancelled')),
	CONSTRAINT uq_job_network_id_target_id_objective_seed_submission UNIQUE (network_id, target_id, objective, seed, submission)
);
INSERT INTO "job" VALUES(1,1,1,'f1',0,64,NULL,9.5,0,'paused','{"number": 3}','stopped by hand','2026-01-01 00:00:00','2026-01-01 00:00:00',NULL,0.0,NULL,NULL,'',0,8);
INSERT INTO "job" VALUES(2,NULL,NULL,'f1',7,8,NULL,0.0,2,'queued','{}',NULL,'2026-01-01 00:00:00','2026-01-01 00:00:00',NULL,0.0,'never loaded','{"zoo": "mlp"}','s1',0,1);
INSERT INTO "job" VALUES(3,1,1,'f1',0,8,60.0,0.0,0,'queued','{"number": 3}',NULL,'2026-01-01 00:00:00','2026-01-01 00:00:00',NULL,0.0,'the same network','{"zoo": "net"}','s2',0,1);
CREATE TABLE job_failure (
	job_id INTEGER NOT NULL,
	error_kind TEXT NOT NULL,
	n_trials INTEGER NOT NULL,
	record_id INTEGER NOT NULL,
	CONSTRAINT pk_job_failure PRIMARY KEY (job_id, error_kind),
	CONSTRAINT fk_job_failure_job_id_job FOREIGN KEY(job_id) REFERENCES job (id),
	CONSTRAINT fk_job_failure_record_id_measure_record FOREIGN KEY(record_id) REFERENCES measure_record (id)
);
INSERT INTO "job_failure" VALUES(1,'run_timeout',1,2);
CREATE TABLE job_status (
	job_id INTEGER NOT NULL,
	phase TEXT NOT NULL,
	task_id INTEGER,
	gains JSON NOT NULL,
	total_secs DOUBLE,
	spent_trials INTEGER NOT NULL,
	outlook JSON,
	updated DATETIME NOT NULL,
	CONSTRAINT pk_job_status PRIMARY KEY (job_id),
	CONSTRAINT fk_job_status_job_id_job FOREIGN KEY(job_id) REFERENCES job (id),
	CONSTRAINT fk_job_status_task_id_task FOREIGN KEY(task_id) REFERENCES task (id)
);
CREATE TABLE lease (
	name TEXT NOT NULL,
	holder TEXT NOT NULL,
	epoch BIGINT NOT NULL,
	expires DATETIME NOT NULL,
	CONSTRAINT pk_lease PRIMARY KEY (name)
);
INSERT INTO "lease" VALUES('coordinator','host:1',1,'2026-01-01 00:00:00');
CREATE TABLE library (
	id INTEGER NOT NULL,
	"key" TEXT NOT NULL,
	network_id INTEGER,
	target_id INTEGER NOT NULL,
	manifest JSON NOT NULL,
	path TEXT NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_library PRIMARY KEY (id),
	CONSTRAINT fk_library_network_id FOREIGN KEY(network_id) REFERENCES network (id),
	CONSTRAINT fk_library_target_id FOREIGN KEY(target_id) REFERENCES target (id),
	CONSTRAINT uq_library_key UNIQUE ("key")
);
INSERT INTO "library" VALUES(1,'k',1,1,'{"format": 1}','/data/k','2026-01-01 00:00:00');
CREATE TABLE measure_feature (
	record_id INTEGER NOT NULL,
	features BLOB NOT NULL,
	CONSTRAINT pk_measure_feature PRIMARY KEY (record_id),
	CONSTRAINT fk_measure_feature_record_id FOREIGN KEY(record_id) REFERENCES measure_record (id)
);
INSERT INTO "measure_feature" VALUES(1,X'0001');
CREATE TABLE measure_record (
	id INTEGER NOT NULL,
	task_id INTEGER NOT NULL,
	pick_id INTEGER,
	trace TEXT NOT NULL,
	trace_hash TEXT NOT NULL,
	module_hash TEXT,
	run_secs JSON,
	latency DOUBLE,
	error_kind TEXT,
	error_text TEXT,
	verified BOOLEAN NOT NULL,
	max_error DOUBLE,
	confirmed_secs JSON,
	worker TEXT NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_measure_record PRIMARY KEY (id),
	CONSTRAINT ck_measure_record_error_kind_known CHECK (error_kind IN ('build_error', 'build_timeout', 'run_error', 'run_timeout', 'wrong_result', 'worker_lost')),
	CONSTRAINT ck_measure_record_timed_or_failed CHECK ((run_secs IS NULL) <> (error_kind IS NULL)),
	CONSTRAINT ck_measure_record_latency_of_samples CHECK ((run_secs IS NULL) = (latency IS NULL)),
	CONSTRAINT ck_measure_record_verified_has_samples CHECK (NOT verified OR run_secs IS NOT NULL),
	CONSTRAINT fk_measure_record_pick_id FOREIGN KEY(pick_id) REFERENCES pick (id),
	CONSTRAINT fk_measure_record_task_id FOREIGN KEY(task_id) REFERENCES task (id),
	CONSTRAINT uq_measure_record_task_id_trace_hash UNIQUE (task_id, trace_hash)
);
INSERT INTO "measure_record" VALUES(1,1,1,'["a"]','a','m1','[2.0, 2.5, 1.5]',2.0,NULL,NULL,1,1.0e-06,'[1.9, 2.1, 2.0]','w1','2026-01-01 00:00:00');
INSERT INTO "measure_record" VALUES(2,1,1,'["b"]','b',NULL,NULL,NULL,'run_timeout','10 s are over',0,NULL,NULL,'w1','2026-01-01 00:00:00');
INSERT INTO "measure_record" VALUES(3,1,2,'["c"]','c',NULL,'[1.0]',1.0,NULL,NULL,1,1.0e-06,'[1.2, 1.1, 1.3]','w1','2026-01-01 00:00:00');
INSERT INTO "measure_record" VALUES(4,1,NULL,'["d"]','d',NULL,'[3.0]',3.0,NULL,NULL,1,1.0e-06,NULL,'other machine','2026-01-01 00:00:00');
CREATE TABLE network (
	id INTEGER NOT NULL,
	sha256 TEXT NOT NULL,
	name TEXT NOT NULL,
	inputs JSON NOT NULL,
	created DATETIME NOT NULL,
	CONSTRAINT pk_network PRIMARY KEY (id),
	CONSTRAINT uq_network_sha256 UNIQUE (sha256)
);
INSERT INTO "network" VALUES(1,'n0','net n0','{"x": {"shape": [1, 3, 224, 224], "dtype": "float32"}}','2026-01-01 00:00:00');
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
INSERT INTO "network_task" VALUES(1,1,2,0);
INSERT INTO "network_task" VALUES(1,2,1,1);
CREATE TABLE pick (
	id INTEGER NOT NULL,
	job_id INTEGER NOT NULL,
	sequence INTEGER NOT NULL,
	task_id INTEGER NOT NULL,
	n_trials INTEGER NOT NULL,
	terms JSON NOT NULL,
	done BOOLEAN NOT NULL,
	created DATETIME NOT NULL, secs DOUBLE, n_measured INTEGER DEFAULT '0' NOT NULL, n_failed INTEGER DEFAULT '0' NOT NULL, n_timeouts INTEGER DEFAULT '0' NOT NULL, best_secs DOUBLE, run_secs DOUBLE DEFAULT '0' NOT NULL, total_secs DOUBLE, job_trials INTEGER,
	CONSTRAINT pk_pick PRIMARY KEY (id),
	CONSTRAINT fk_pick_job_id FOREIGN KEY(job_id) REFERENCES job (id),
	CONSTRAINT fk_pick_task_id FOREIGN KEY(task_id) REFERENCES task (id),
	CONSTRAINT uq_pick_job_id_sequence UNIQUE (job_id, sequence)
);
INSERT INTO "pick" VALUES(1,1,1,1,2,'{"reason": "warm_up", "gain": null}',1,'2026-01-01 00:00:00',12.5,2,1,1,2.0,2.0,NULL,NULL);
INSERT INTO "pick" VALUES(2,1,2,1,2,'{"reason": "gradient", "gain": 0.5}',0,'2026-01-01 00:00:00',NULL,1,0,0,1.0,1.0,NULL,NULL);
INSERT INTO "pick" VALUES(3,1,3,2,2,'{"reason": "warm_up", "failed": "nothing to propose"}',1,'2026-01-01 00:00:00',NULL,0,0,0,NULL,0.0,NULL,NULL);
CREATE TABLE target (
	id INTEGER NOT NULL,
	spec TEXT NOT NULL,
	device JSON NOT NULL,
	fingerprint TEXT NOT NULL,
	CONSTRAINT pk_target PRIMARY KEY (id),
	CONSTRAINT uq_target_fingerprint UNIQUE (fingerprint)
);
INSERT INTO "target" VALUES(1,'{"kind":"llvm"}','{"name": "Test CPU", "n_cores": 2, "versions": {"tvm": "0.27"}}','4936cb82d414cda9f644d56436a2e6d1db7b3687ae490f92971e7283b509be12');
CREATE TABLE task (
	id INTEGER NOT NULL,
	workload_id INTEGER NOT NULL,
	target_id INTEGER NOT NULL,
	CONSTRAINT pk_task PRIMARY KEY (id),
	CONSTRAINT fk_task_target_id FOREIGN KEY(target_id) REFERENCES target (id),
	CONSTRAINT fk_task_workload_id FOREIGN KEY(workload_id) REFERENCES workload (id),
	CONSTRAINT uq_task_workload_id_target_id UNIQUE (workload_id, target_id)
);
INSERT INTO "task" VALUES(1,1,1);
INSERT INTO "task" VALUES(2,2,1);
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
	stopped DATETIME,
	CONSTRAINT pk_worker PRIMARY KEY (id),
	CONSTRAINT fk_worker_job_id_job FOREIGN KEY(job_id) REFERENCES job (id),
	CONSTRAINT uq_worker_name UNIQUE (name)
);
INSERT INTO "worker" VALUES(1,'host:1','host',1,'coordinator','{}',1,'measuring',0.0,0.0,'2026-01-01 00:00:00','2026-01-01 00:00:00',NULL);
CREATE TABLE workload (
	id INTEGER NOT NULL,
	hash TEXT NOT NULL,
	engine TEXT NOT NULL,
	ir BLOB NOT NULL,
	flop DOUBLE NOT NULL,
	name TEXT NOT NULL,
	CONSTRAINT pk_workload PRIMARY KEY (id),
	CONSTRAINT uq_workload_hash_engine UNIQUE (hash, engine)
);
INSERT INTO "workload" VALUES(1,'w0','relax',X'0069722D7730',2000000000.0,'dense_w0');
INSERT INTO "workload" VALUES(2,'w1','relax',X'0069722D7731',2000000000.0,'dense_w1');
CREATE INDEX ix_task_target_id ON task (target_id);
CREATE INDEX ix_network_task_task_id ON network_task (task_id);
CREATE INDEX ix_pick_task_id ON pick (task_id);
CREATE INDEX ix_measure_record_pick_id ON measure_record (pick_id);
CREATE INDEX ix_measure_record_task_id_latency ON measure_record (task_id, latency);
CREATE INDEX ix_job_state ON job (state);
CREATE UNIQUE INDEX uq_job_submission ON job (submission) WHERE submission <> '';
CREATE INDEX ix_audit_event_created ON audit_event (created);
CREATE INDEX ix_audit_event_job_id ON audit_event (job_id);
CREATE INDEX ix_build_job_id_id ON build (job_id, id);
CREATE INDEX ix_build_state ON build (state);

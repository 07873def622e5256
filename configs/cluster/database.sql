-- What the fixtures leave out, so that folders, images and model services can be used at once.

UPDATE users SET main_access_key = keypairs.access_key
FROM keypairs WHERE keypairs."user" = users.uuid;

CREATE TEMPORARY TABLE folder_permissions AS SELECT '{
  "local:volume1": [
    "create-vfolder", "modify-vfolder", "delete-vfolder", "mount-in-session",
    "upload-file", "download-file", "invite-others", "set-user-specific-permission"
  ]
}'::jsonb AS value;

UPDATE domains SET allowed_vfolder_hosts = value FROM folder_permissions;
UPDATE groups SET allowed_vfolder_hosts = value FROM folder_permissions;
UPDATE keypair_resource_policies SET allowed_vfolder_hosts = value FROM folder_permissions;

UPDATE domains SET allowed_docker_registries = array_append(allowed_docker_registries, 'local')
WHERE NOT 'local' = ANY (allowed_docker_registries);

UPDATE scaling_groups
SET wsproxy_addr = 'http://${host}:${coordinator_port}', wsproxy_api_token = '${proxy_api_secret}';

-- Tests run several sessions side by side, and clusters of containers.
UPDATE keypair_resource_policies
SET max_concurrent_sessions = 30, max_containers_per_session = 4;

INSERT INTO login_client_types (name, description)
VALUES ('core', 'Client SDK and command line'), ('webui', 'Web interface')
ON CONFLICT (name) DO NOTHING;

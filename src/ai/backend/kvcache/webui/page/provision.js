/* A project's KV folder, made through the manager as `backend.ai kvcache policy provision` does. */

import { ApiError, createFolder, listFolders } from './api.js';
import { text } from './texts.js';

// Of folders that are gone, or going; their names are free again.
const GONE = ['delete-ongoing', 'delete-complete', 'delete-error'];
const IN_THE_TRASH = 'delete-pending';

const placeOf = (folder) =>
  `${folder.host}/${folder.quota_scope_id}/${folder.id.replaceAll('-', '')}`;

/**
 * The place of the project's folder, which is made if there is none.
 *
 * @param {string} prefix what the names of such folders begin with
 * @param {?string} host where it is made; null: the manager's default
 */
export async function provision(project, prefix, host) {
  const name = `${prefix}-${project.slice(0, 8)}`;
  const named = (await listFolders()).filter(
    (folder) => folder.group === project && folder.name === name && !GONE.includes(folder.status),
  );
  // One in the trash may have the same name.
  const found = named.find((folder) => folder.status !== IN_THE_TRASH) ?? named[0];
  if (found === undefined) {
    // Its members may look into it at most. What sessions keep is written through the agents.
    const wanted = { name, host, group: project, usage_mode: 'general', permission: 'ro' };
    return placeOf(await createFolder(wanted));
  }
  if (found.status === IN_THE_TRASH) {
    throw new ApiError(0, text('inTheTrash', { name }));
  }
  if (!['general', 'data'].includes(found.usage_mode)) {
    throw new ApiError(0, text('ofOtherKind', { name, kind: found.usage_mode }));
  }
  return placeOf(found);
}

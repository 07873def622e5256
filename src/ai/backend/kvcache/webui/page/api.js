/* The manager's routes, as the web server passes them on with the user's session. */

export class ApiError extends Error {
  /** @param {number} status of the answer; 0: it is not the manager that says no */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(method, path, body) {
  let answer;
  try {
    answer = await fetch(`/func${path}`, {
      method,
      ...(body && {
        body: JSON.stringify(body),
        headers: { 'Content-Type': 'application/json' },
      }),
    });
  } catch (error) {
    throw new ApiError(0, error.message);
  }
  const content = await answer.json().catch(() => null);
  if (!answer.ok) {
    throw new ApiError(
      answer.status,
      content?.msg ?? content?.title ?? `${answer.status} ${answer.statusText}`,
    );
  }
  return content;
}

export const getPolicy = () => request('GET', '/kvcache/policy');

/** Changes (RFC 7396) to the policy of that version; ApiError 409 where it is another by now. */
export const patchPolicy = (version, patch) => request('PATCH', '/kvcache/policy', { version, patch });

export const getProjects = async () => (await request('GET', '/kvcache/projects')).projects;

export const getFolders = async () => (await request('GET', '/kvcache/folders')).folders;

export const getSessions = async () => (await request('GET', '/kvcache/sessions')).sessions;

/** The plan of a session's main kernel; undefined where no agent has told it. */
export const getPlan = async (id) =>
  Object.values((await request('GET', `/kvcache/sessions/${id}/plan`)).kernels)[0];

/** Makes the folder of a project that only agents reach, or finds it; its place. */
export const makeFolder = async (project, host) =>
  (await request('POST', '/kvcache/folders', { project, host })).place;

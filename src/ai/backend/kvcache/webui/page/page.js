/* The page: what it knows, when it asks the manager, and what happens when somebody changes something. */

import {
  ApiError,
  getFolders,
  getPlan,
  getPolicy,
  getProjects,
  getSessions,
  makeFolder,
  patchPolicy,
} from './api.js';
import { html, nothing, render } from './lit-html.js';
import { policyView } from './policy-view.js';
import { projectsView } from './projects-view.js';
import { sessionsView } from './sessions-view.js';
import { text } from './texts.js';

const SESSIONS_SECONDS = 5;
// To count what lies in a folder, a storage proxy may walk all of it.
const REST_SECONDS = 60;

const FORBIDDEN = 403;
const CONFLICT = 409;

const sheet = new CSSStyleSheet();
await sheet.replace(await (await fetch(new URL('page.css', import.meta.url))).text());

class KVCachePage extends HTMLElement {
  /** As the manager answers it: version, policy, problem, settings. null: not known yet. */
  policy = null;
  projects = [];
  /** Project's id → its folder. */
  folders = new Map();
  sessions = [];
  /** Session's id → its plan, null where there is none, of those that were opened. */
  plans = new Map();
  /** Ids of sessions that are shown in full. */
  open = new Set();
  filter = '';
  /** Field → null where its last change was written, or why it was not. */
  outcomes = new Map();
  /** Whether a change is on its way. */
  isBusy = false;
  /** Id of the project whose folder is being made. */
  making = null;

  #active = false;
  #timers = [];
  #isForbidden = false;
  /** What to say above everything, until it is dismissed. */
  #notice = null;
  /** Why the manager cannot be asked, while it cannot. */
  #unreachable = null;

  constructor() {
    super();
    this.attachShadow({ mode: 'open' }).adoptedStyleSheets = [sheet];
  }

  get active() {
    return this.#active;
  }

  /** Nothing is asked while nobody looks. */
  set active(active) {
    if (active === this.#active) {
      return;
    }
    this.#active = active;
    this.#timers.forEach(clearInterval);
    this.#timers = [];
    if (active) {
      this.#begin();
    }
  }

  async #begin() {
    this.#render();
    await this.#ask(() => this.#read());
    if (!this.#active || this.#isForbidden) {
      return;
    }
    const every = (time, work) =>
      this.#timers.push(setInterval(() => document.hidden || this.#ask(work), 1000 * time));
    every(SESSIONS_SECONDS, () => this.#readSessions());
    every(REST_SECONDS, () => this.#read());
  }

  /** Does something that asks the manager, and shows what came of it. */
  async #ask(work) {
    try {
      await work();
      this.#unreachable = null;
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      this.#isForbidden = error.status === FORBIDDEN;
      this.#unreachable = error.message;
    }
    this.#render();
  }

  async #read() {
    if (this.isBusy) {
      return;
    }
    this.policy = await getPolicy();
    const isUsable = this.policy.problem === null;
    this.projects = isUsable ? await getProjects() : [];
    this.#render();
    await this.#readSessions();
    this.#render();
    const folders = isUsable ? await getFolders() : [];
    this.folders = new Map(folders.map((folder) => [folder.project.id, folder]));
  }

  async #readSessions() {
    this.sessions = await getSessions();
    const running = new Set(this.sessions.map(({ id }) => id));
    this.open = new Set([...this.open].filter((id) => running.has(id)));
  }

  /** Changes settings of the site; what is null is not said any more. */
  change(field, settings) {
    return this.#write(field, () => settings);
  }

  /** The same for a project. */
  changeProject(field, project, settings) {
    return this.#write(field, () => ({ projects: { [project.id]: settings } }));
  }

  /**
   * Gives a project a folder that only agents reach, in the place of the one that it has, if any.
   *
   * @param {?string} oldHost where the one is that it has
   */
  async makeFolder(field, project, oldHost = null) {
    if (oldHost !== null && !confirm(text('replaceFolderWarning', { name: project.name }))) {
      return;
    }
    this.making = project.id;
    await this.#write(field, async () => {
      const host = project.said['storage-host'] ?? this.policy.policy['storage-host'] ?? oldHost;
      return { projects: { [project.id]: { folder: await makeFolder(project.id, host) } } };
    });
    this.making = null;
    this.#render();
  }

  /**
   * Writes to the version of the policy that is shown, and to no other.
   *
   * @param {function(): object} patch what to change (RFC 7396), or a promise of it
   */
  async #write(field, patch) {
    this.isBusy = true;
    this.outcomes.delete(field);
    this.#render();
    try {
      this.policy = await patchPolicy(this.policy.version, await patch());
      this.outcomes.clear();
      this.outcomes.set(field, null);
    } catch (error) {
      if (!(error instanceof ApiError)) {
        throw error;
      }
      if (error.status === CONFLICT) {
        this.#notice = `${text('conflict')} (${error.message})`;
        this.policy = null;
      } else {
        this.outcomes.set(field, error.message);
      }
    } finally {
      this.isBusy = false;
    }
    // After a conflict this shows what the others have written.
    await this.#ask(() => this.#read());
  }

  setFilter(filter) {
    this.filter = filter;
    this.#render();
  }

  /** Shows a session in full, or no longer. */
  async toggle(id) {
    if (this.open.delete(id)) {
      this.#render();
      return;
    }
    this.open.add(id);
    this.plans.delete(id);
    await this.#ask(async () => {
      this.#render();
      this.plans.set(id, (await getPlan(id)) ?? null);
    });
  }

  #banners() {
    const problem = this.policy?.problem;
    return html`
      ${this.#notice
        ? html`
            <p class="banner" role="alert">
              ${this.#notice}
              <button type="button" @click=${() => { this.#notice = null; this.#render(); }}>
                ${text('dismiss')}
              </button>
            </p>
          `
        : nothing}
      ${this.#unreachable
        ? html`<p class="banner" role="alert">${text('unreachable', { reason: this.#unreachable })}</p>`
        : nothing}
      ${problem
        ? html`<p class="banner" role="alert">${text('problem', { reason: problem })} ${text('problemHint')}</p>`
        : nothing}
    `;
  }

  #content() {
    if (this.#isForbidden) {
      return html`<p class="refused">${text('refused')}</p><p>${text('refusedHint')}</p>`;
    }
    return html`
      <p class="subtitle">${text('subtitle')}</p>
      ${this.#banners()}
      ${this.policy === null && !this.#unreachable ? html`<p class="note">${text('loading')}</p>` : nothing}
      ${this.policy?.problem === null ? [policyView(this), projectsView(this)] : nothing}
      ${this.policy === null ? nothing : sessionsView(this)}
    `;
  }

  #render() {
    render(html`<main><h1>${text('title')}</h1>${this.#content()}</main>`, this.shadowRoot);
  }
}

customElements.define('kv-cache-page', KVCachePage);

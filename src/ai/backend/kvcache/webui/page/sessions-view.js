/* Running sessions: where their prompts' tokens come from, and what to think of it. */

import { stacked } from './bars.js';
import { bytes, count, figure, percent, seconds } from './format.js';
import { html, nothing } from './lit-html.js';
import { text, translated } from './texts.js';

/** Class of a bar's part → the figure that it shows. */
const SOURCES = {
  folder: 'kvcache_util',
  host: 'kvcache_host_util',
  engine: 'kvcache_engine_util',
  computed: 'kvcache_computed_util',
};

const HEAVY = ['broken', 'harms'];

const needsAttention = (session) => session.advice.some(({ weight }) => HEAVY.includes(weight));

const known = (session, key) => session.figures[key] !== undefined;

/** Those that need attention first, then the newest, as the manager lists them. */
function chosen(page) {
  const wanted = page.filter.trim().toLowerCase();
  const words = ({ name, user, project }) => `${name} ${user} ${project.name}`.toLowerCase();
  const found = page.sessions.filter((session) => words(session).includes(wanted));
  return [...found.filter(needsAttention), ...found.filter((session) => !needsAttention(session))];
}

function served(session) {
  const parts = Object.entries(SOURCES)
    .filter(([, key]) => known(session, key))
    .map(([name, key]) => [name, session.figures[key]]);
  if (parts.length === 0) {
    return html`<span class="note">${text('notMeasured')}</span>`;
  }
  const label = parts.map(([name, share]) => `${text(`from.${name}`)} ${percent(share)}`).join(', ');
  return html`
    ${stacked(parts, label)}
    <small>${known(session, 'kvcache_util') ? percent(session.figures.kvcache_util) : '-'}</small>
  `;
}

function firstToken({ figures }) {
  const times = ['kvcache_first_token_cold', 'kvcache_first_token_warm'].map((key) =>
    figures[key] === undefined ? '-' : seconds(figures[key]),
  );
  return times.every((time) => time === '-') ? '-' : times.join(' → ');
}

function stored({ figures }) {
  if (figures.kvcache_mem === undefined) {
    return '-';
  }
  return html`
    ${bytes(figures.kvcache_mem)}
    ${figures.kvcache_blocks === undefined
      ? nothing
      : html`<small>${text('blocks', { count: count(figures.kvcache_blocks) })}</small>`}
  `;
}

function verdict(session) {
  if (session.plan?.kv_cache === false) {
    const reason = session.plan.no_kv_cache_because;
    return html`<span class="verdict without">${text('noKvCache', { reason })}</span>`;
  }
  if (session.advice.length === 0) {
    return html`<span class="note">${text('noVerdict')}</span>`;
  }
  const figures = Object.fromEntries(
    Object.entries(session.figures).map(([key, value]) => [key, figure(key, value)]),
  );
  return session.advice.map(
    (advice) => html`
      <span class="verdict ${advice.weight}">
        ${translated(`advice.${advice.key}`, advice.text, figures)}
      </span>
    `,
  );
}

const shown = (value) => (typeof value === 'string' ? value : JSON.stringify(value));

function planView(plan) {
  if (!plan) {
    return html`<p class="note">${text('planUnknown')}</p>`;
  }
  if (plan.no_kv_cache_because) {
    return html`<p>${text('noKvCache', { reason: plan.no_kv_cache_because })}</p>`;
  }
  const head = [
    ['engine', plan.engine],
    ['folder', plan.folder],
    ['namespace', plan.namespace?.name],
  ];
  return html`
    <dl>
      ${head.map(([name, value]) => (value ? html`<dt>${text(name)}</dt><dd>${value}</dd>` : nothing))}
    </dl>
    <table>
      <thead>
        <tr><th>${text('decided')}</th><th>${text('value')}</th><th>${text('why')}</th></tr>
      </thead>
      <tbody>
        ${plan.decisions?.map(
          ({ what, value, why }) => html`
            <tr><td>${what}</td><td><code>${shown(value)}</code></td><td>${why}</td></tr>
          `,
        )}
      </tbody>
    </table>
    ${plan.warnings?.map((warning) => html`<p class="verdict harms">${text('warning', { text: warning })}</p>`)}
  `;
}

function details(page, session) {
  const plan = page.plans.get(session.id);
  const figures = Object.entries(session.figures);
  return html`
    <tr class="details">
      <td colspan="6">
        <h3>${text('plan')}</h3>
        ${plan === undefined ? html`<p class="note">${text('loading')}</p>` : planView(plan)}
        <h3>${text('figures')}</h3>
        ${figures.length === 0 ? html`<p class="note">${text('notMeasured')}</p>` : nothing}
        <dl class="figures">
          ${figures.map(([key, value]) => html`<dt>${key}</dt><dd>${figure(key, value)}</dd>`)}
        </dl>
      </td>
    </tr>
  `;
}

function row(page, session) {
  const isOpen = page.open.has(session.id);
  const saved = session.figures.kvcache_saved_seconds;
  return html`
    <tr data-session=${session.id}>
      <td>
        <button
          type="button"
          class="plain"
          aria-expanded=${isOpen}
          title=${session.name}
          @click=${() => page.toggle(session.id)}
        >
          <span class="arrow">${isOpen ? '▾' : '▸'}</span> ${session.name}
        </button>
        <small>
          ${session.user} · ${session.project.name}
          ${session.age_seconds === null
            ? nothing
            : html`· ${text('running', { age: seconds(session.age_seconds) })}`}
        </small>
      </td>
      <td>${served(session)}</td>
      <td class="number">${firstToken(session)}</td>
      <td class="number">${saved === undefined ? '-' : seconds(saved)}</td>
      <td class="number">${stored(session)}</td>
      <td>${verdict(session)}</td>
    </tr>
    ${isOpen ? details(page, session) : nothing}
  `;
}

function tiles(page) {
  const folders = [...page.folders.values()].filter((folder) => folder.used_bytes !== null);
  const without = page.sessions.filter((session) => session.plan?.kv_cache === false);
  const values = [
    ['tile_sessions', count(page.sessions.length - without.length), ''],
    ['tile_without', count(without.length), without.length ? 'some' : ''],
    [
      'tile_attention',
      count(page.sessions.filter(needsAttention).length),
      page.sessions.some(needsAttention) ? 'some' : '',
    ],
    ['tile_folders', bytes(folders.reduce((sum, folder) => sum + folder.used_bytes, 0)), ''],
  ];
  return html`
    <div class="tiles">
      ${values.map(
        ([name, value, kind]) => html`
          <div class="tile ${kind}"><span>${text(name)}</span><b>${value}</b></div>
        `,
      )}
    </div>
  `;
}

const legend = () => html`
  <p class="legend">
    ${text('served')}
    ${Object.keys(SOURCES).map((name) => html`<span class="key ${name}">${text(`from.${name}`)}</span>`)}
  </p>
`;

export function sessionsView(page) {
  const sessions = chosen(page);
  return html`
    <section aria-labelledby="sessions">
      <h2 id="sessions">${text('sessions')}</h2>
      ${tiles(page)}
      <div class="above">
        <input
          type="search"
          placeholder=${text('filter')}
          aria-label=${text('filter')}
          @input=${(event) => page.setFilter(event.target.value)}
        />
        ${legend()}
      </div>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th>${text('session')}</th>
              <th class="wide">${text('served')}</th>
              <th class="number" title=${text('firstTokenHint')}>${text('firstToken')}</th>
              <th class="number" title=${text('savedTimeHint')}>${text('savedTime')}</th>
              <th class="number">${text('stored')}</th>
              <th>${text('verdict')}</th>
            </tr>
          </thead>
          <tbody>
            ${sessions.map((session) => row(page, session))}
          </tbody>
        </table>
      </div>
      ${sessions.length === 0
        ? html`<p class="note">${text(page.sessions.length === 0 ? 'noSessions' : 'noMatch')}</p>`
        : nothing}
    </section>
  `;
}

/* Projects: whether their sessions get KV cache, where, and how much lies there. */

import { used } from './bars.js';
import { bytes, count } from './format.js';
import { html, nothing } from './lit-html.js';
import { input, outcome } from './policy-view.js';
import { text } from './texts.js';

function mode(page, project) {
  const field = `${project.id}.mode`;
  const site = page.policy.policy.mode ?? 'explicit';
  const change = (event) => page.changeProject(field, project, { mode: event.target.value || null });
  return html`
    <select aria-label=${`${text('mode')}: ${project.name}`} ?disabled=${page.isBusy} @change=${change}>
      <option value="" ?selected=${project.said.mode === undefined}>
        ${text('asSite', { value: text(`mode.${site}`) })}
      </option>
      ${['off', 'explicit', 'auto'].map(
        (name) => html`
          <option value=${name} ?selected=${project.said.mode === name}>${text(`mode.${name}`)}</option>
        `,
      )}
    </select>
    ${site === 'off' && ![undefined, 'off'].includes(project.said.mode)
      ? html`<small class="note">${text('effectiveOff')}</small>`
      : nothing}
    ${outcome(page, field)}
  `;
}

function usage(folder) {
  if (folder === undefined || folder.used_bytes === null) {
    return html`<small class="note">${text('usageUnknown')}</small>`;
  }
  const values = { used: bytes(folder.used_bytes), files: count(folder.files) };
  if (folder.cap_bytes === null) {
    return html`<small>${text('usageWithoutCap', values)}</small>`;
  }
  const label = text('usage', { ...values, cap: bytes(folder.cap_bytes) });
  return html`
    ${used((100 * folder.used_bytes) / folder.cap_bytes, label)}
    <small>${label}</small>
  `;
}

function makeButton(page, project, field, name, oldHost) {
  return html`
    <button
      type="button"
      ?disabled=${page.isBusy}
      @click=${() => page.makeFolder(field, project, oldHost)}
    >
      ${page.making === project.id ? text('making') : text(name)}
    </button>
  `;
}

function folder(page, project) {
  const field = `${project.id}.folder`;
  const place = project.said.folder;
  if (place === undefined) {
    return html`
      <span class="note">${text('noFolder')}</span>
      ${makeButton(page, project, field, 'makeFolder', null)} ${outcome(page, field)}
    `;
  }
  const host = place.split('/')[0];
  const known = page.folders.get(project.id);
  return html`
    <span class="place" title=${place}>${host}</span>
    ${usage(known)}
    ${known?.provisioned === false
      ? html`
          <span class="refusal">${text('reachableFolder')}</span>
          ${makeButton(page, project, field, 'replaceFolder', host)}
        `
      : nothing}
    ${outcome(page, field)}
  `;
}

function cap(page, project) {
  const field = `${project.id}.folder-cap`;
  const setting = { name: 'folder-cap', choices: null };
  const site = page.policy.policy['folder-cap'];
  const otherwise = site === undefined ? text('noCap') : text('asSite', { value: site });
  const change = (value) => page.changeProject(field, project, { 'folder-cap': value });
  return input(page, field, setting, project.said['folder-cap'], otherwise, change);
}

export function projectsView(page) {
  return html`
    <section aria-labelledby="projects">
      <h2 id="projects">${text('projects')}</h2>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th>${text('project')}</th>
              <th>${text('mode')}</th>
              <th class="wide">${text('folder')}</th>
              <th>${text('cap')}</th>
            </tr>
          </thead>
          <tbody>
            ${page.projects.map(
              (project) => html`
                <tr data-project=${project.id}>
                  <td><b>${project.name}</b><small>${project.domain}</small></td>
                  <td>${mode(page, project)}</td>
                  <td>${folder(page, project)}</td>
                  <td>${cap(page, project)}</td>
                </tr>
              `,
            )}
          </tbody>
        </table>
      </div>
    </section>
  `;
}

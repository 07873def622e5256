/* What applies to the whole site, and the fields by which settings are changed. */

import { html, nothing } from './lit-html.js';
import { text, translated } from './texts.js';

const MODES = ['off', 'explicit', 'auto'];

/** How a change went: nothing, a check mark, or why it was refused. */
export function outcome(page, field) {
  const found = page.outcomes.get(field);
  if (found === undefined) {
    return nothing;
  }
  return found === null
    ? html`<span class="saved" role="status">✓ ${text('saved')}</span>`
    : html`<span class="refusal" role="alert">${found}</span>`;
}

/**
 * One setting of one level.
 *
 * @param {string} field which of all fields it is
 * @param {object} setting as the manager describes it
 * @param {?string|number|boolean} said at this level; undefined: nothing
 * @param {string} otherwise what applies where nothing is said
 * @param {function(?string)} change with the new value; null: nothing is said any more
 */
export function input(page, field, setting, said, otherwise, change) {
  const label = text(`setting.${setting.name}`);
  if (setting.choices) {
    return html`
      <select
        aria-label=${label}
        ?disabled=${page.isBusy}
        @change=${(event) => change(event.target.value || null)}
      >
        <option value="" ?selected=${said === undefined}>${otherwise}</option>
        ${setting.choices.map(
          (choice) => html`
            <option value=${choice} ?selected=${String(said) === choice}>${choice}</option>
          `,
        )}
      </select>
      ${outcome(page, field)}
    `;
  }
  return html`
    <input
      type="text"
      spellcheck="false"
      autocomplete="off"
      aria-label=${label}
      ?disabled=${page.isBusy}
      class=${page.outcomes.get(field) ? 'wrong' : ''}
      placeholder=${otherwise}
      .value=${said === undefined ? '' : String(said)}
      @change=${(event) => change(event.target.value.trim() || null)}
    />
    ${outcome(page, field)}
  `;
}

function modes(page) {
  const mode = page.policy.policy.mode ?? 'explicit';
  return html`
    <div class="modes" role="radiogroup" aria-label=${text('mode')}>
      ${MODES.map(
        (name) => html`
          <label class=${name === mode ? 'mode chosen' : 'mode'}>
            <input
              type="radio"
              name="mode"
              value=${name}
              ?disabled=${page.isBusy}
              .checked=${name === mode}
              @change=${() => page.change('site.mode', { mode: name })}
            />
            <b>${text(`mode.${name}`)}</b>
            <span>${text(`mode.${name}.hint`)}</span>
          </label>
        `,
      )}
    </div>
    ${outcome(page, 'site.mode')}
  `;
}

function settings(page) {
  return page.policy.settings
    .filter(({ name }) => name !== 'mode')
    .map((setting) => {
      const { name, meaning, choices } = setting;
      const field = `site.${name}`;
      const otherwise =
        setting.default === null ? (choices ? '-' : '') : text('default', { value: setting.default });
      const said = page.policy.policy[name];
      return html`
        <div class="setting">
          <h3>${text(`setting.${name}`)} <code>${name}</code></h3>
          <p>${translated(`meaning.${name}`, meaning)}</p>
          ${input(page, field, setting, said, otherwise, (value) => page.change(field, { [name]: value }))}
        </div>
      `;
    });
}

const described = ([name, said]) =>
  `${name} (${Object.entries(said)
    .map(([key, value]) => `${key} = ${value}`)
    .join(', ')})`;

export function policyView(page) {
  const groups = Object.entries(page.policy.policy['resource-groups'] ?? {});
  return html`
    <section aria-labelledby="site">
      <h2 id="site">${text('site')}</h2>
      ${modes(page)}
      ${groups.length > 0
        ? html`<p class="note">${text('groups', { names: groups.map(described).join('; ') })}</p>`
        : nothing}
      <details>
        <summary>${text('more')}</summary>
        <div class="settings">${settings(page)}</div>
      </details>
    </section>
  `;
}

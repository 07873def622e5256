/* Shares, drawn. As SVG, since a strict content security policy allows no style attributes. */

import { html, svg } from './lit-html.js';

/**
 * Parts of a whole beside one another.
 *
 * @param {[string, number][]} parts class and percent, from the left
 * @param {string} label what it shows, in words
 */
export function stacked(parts, label) {
  let left = 0;
  const pieces = parts.map(([name, share]) => {
    const piece = svg`<rect class=${name} x=${left} y="0" width=${share} height="10"></rect>`;
    left += share;
    return piece;
  });
  return html`
    <svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label=${label}>
      <title>${label}</title>
      <rect class="rest" x="0" y="0" width="100" height="10"></rect>
      ${pieces}
    </svg>
  `;
}

/** How much of a whole is used; in another colour from 90 percent on. */
export function used(share, label) {
  return stacked([[share >= 90 ? 'full' : 'folder', Math.min(share, 100)]], label);
}
